"""Ctrl-C is collected while guarded, and the handler is put back."""

from __future__ import annotations

import signal
import threading

import pytest

from jaxllm.interrupt import InterruptFlag


def test_one_signal_sets_the_flag_and_a_second_raises():
    before = signal.getsignal(signal.SIGINT)
    flag = InterruptFlag()
    with flag.guard(), flag.guard():
        signal.raise_signal(signal.SIGINT)
        assert flag.is_set
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_not_guarded():
    flags = []

    def work():
        flag = InterruptFlag()
        with flag.guard():
            flags.append(flag.is_set)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert flags == [False]
