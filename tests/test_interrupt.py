"""Ctrl-C is collected while guarded, held back while told to, and the handler is put back."""

from __future__ import annotations

import signal
import threading

import pytest

from jaxllm.interrupt import HeldInterrupts, InterruptFlag


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


def test_held_interrupts_are_delivered_at_the_end_and_while_released():
    before = signal.getsignal(signal.SIGINT)
    done = []

    def hold():
        with HeldInterrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("held")

    with pytest.raises(KeyboardInterrupt):
        hold()
    with HeldInterrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.released():
            done.append("not reached")
        with pytest.raises(KeyboardInterrupt), interrupts.released():
            signal.raise_signal(signal.SIGINT)
        done.append("released")
    assert done == ["held", "released"]
    assert signal.getsignal(signal.SIGINT) is before


def test_held_interrupts_go_to_whoever_listened_before():
    flag = InterruptFlag()
    with flag.guard():
        with HeldInterrupts(), HeldInterrupts():
            signal.raise_signal(signal.SIGINT)
            assert not flag.is_set
        assert flag.is_set


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_handlers_that_are_not_pythons_are_left_alone(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with HeldInterrupts() as interrupts, interrupts.released():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
