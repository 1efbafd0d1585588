"""The program as a process: its imports, its exit codes, its pipes, Ctrl-C at a terminal."""

from __future__ import annotations

import ctypes
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_folder import write_tiny_folder

import jaxllm

PROGRAM = [sys.executable, "-c", "from jaxllm.cli import main; main()"]
PATIENCE = 120.0  # seconds, for a machine that does much else
ENDLESS = ("--ignore-eos", "--max-tokens", "100000", "--max-num-batched-tokens", "32")


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A tiny model with a context that takes minutes to fill."""
    return write_tiny_folder(tmp_path_factory.mktemp("talker") / "talker", max_position_embeddings=1 << 17)


def environment():
    return {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"], ["info", "a", "-m", "b"]])
def test_help_and_usage_errors_do_not_import_jax(arguments):
    code = ("import sys\nfrom jaxllm.cli.app import app\ntry:\n    app(prog_name='jaxllm')\nexcept SystemExit: pass\n"
            "heavy = {'jax', 'numpy', 'flax', 'tokenizers', 'huggingface_hub'} & set(sys.modules)\n"
            "print(sorted(heavy), file=sys.stderr)")
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE,
                            env=environment(), check=True)
    assert result.stderr.splitlines()[-1] == "[]"


HEAPS_OF_TEN_THREADS = """
import ctypes, sys, threading
from jaxllm.cli.app import use_few_heaps
use_few_heaps()
libc = ctypes.CDLL(None)
started = threading.Barrier(10)
def allocate():
    started.wait()
    libc.malloc(1000)
    started.wait()
threads = [threading.Thread(target=allocate) for _ in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc's malloc")
@pytest.mark.parametrize(("limit", "heaps"), [(None, 2), ("4", 4)])
def test_threads_share_two_heaps_or_as_many_as_the_environment_says(tmp_path, limit, heaps):
    variables = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    if limit:
        variables["MALLOC_ARENA_MAX"] = limit
    report = tmp_path / "heaps.xml"
    subprocess.run([sys.executable, "-c", HEAPS_OF_TEN_THREADS, report], env=variables, timeout=PATIENCE, check=True)
    assert report.read_text().count("<heap nr=") == heaps


def test_a_reader_that_goes_away_ends_it_quietly(talker):
    process = subprocess.Popen([*PROGRAM, "generate", "-m", talker, "hi", *ENDLESS, "--quiet"], env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert len(process.stdout.read(5)) == 5
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(PATIENCE) == 1
        assert errors == b""
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)], ids=["output", "error", "both"])
def test_closed_standard_streams_are_no_error(talker, closed):
    def close():
        for number in closed:
            os.close(number)

    result = subprocess.run([*PROGRAM, "generate", "-m", talker, "hi", "--max-tokens", "3"], env=environment(),
                            preexec_fn=close, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False)
    assert result.returncode == 0


def test_letters_that_the_outputs_encoding_lacks_are_replaced(talker):
    result = subprocess.run(
        [*PROGRAM, "generate", "-m", talker, "hi", "--max-tokens", "40", "--seed", "3", "-q", "--temperature", "1"],
        env={**environment(), "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=PATIENCE, check=True)
    assert b"?" in result.stdout
    assert result.stderr == b""


def test_an_interrupted_generate_keeps_its_text_and_exits_with_130(talker):
    with Terminal("generate", "-m", talker, "hi", *ENDLESS) as terminal:
        terminal.wait_for(b"is ready")
        terminal.wait_for_more(50)
        terminal.interrupt()
        terminal.wait_for(b"finish: abort")
        assert terminal.exit_code() == 130
        assert b"Traceback" not in terminal.screen


def test_ctrl_c_stops_the_answer_and_not_the_chat(talker):
    with Terminal("chat", "-m", talker, *ENDLESS) as terminal:
        for number in range(2):
            terminal.wait_for(b"> ", count=number + 1)
            terminal.type(b"hello\n")
            terminal.wait_for_more(50)
            terminal.interrupt()
            terminal.wait_for(b"(interrupted)", count=number + 1)
        terminal.interrupt_until(b"(Ctrl-D or /exit leaves)\r\n> ")  # the prompt shows once keys are read one by one
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0
        assert b"Traceback" not in terminal.screen


class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, *arguments):
        self._ours, theirs = pty.openpty()
        self.screen = b""
        self._process = subprocess.Popen([*PROGRAM, *map(str, arguments)], env=environment(), stdin=theirs,
                                         stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, text):
        os.write(self._ours, text)

    def interrupt(self):
        self._process.send_signal(signal.SIGINT)

    def interrupt_until(self, text):
        """As Python's input misses a signal that comes just before it waits for a key, until the next key or signal."""
        sent = [0.0]

        def seen():
            if text not in self.screen and time.monotonic() > sent[0] + 1.0:
                self.interrupt()
                sent[0] = time.monotonic()
            return text in self.screen

        self._read_until(seen, repr(text))

    def wait_for(self, text, count=1):
        self._read_until(lambda: self.screen.count(text) >= count, f"{text!r}, {count} times")

    def wait_for_more(self, size):
        goal = len(self.screen) + size
        self._read_until(lambda: len(self.screen) >= goal, f"{size} more bytes")

    def exit_code(self):
        self._read_until(lambda: self._process.poll() is not None, "its end")
        return self._process.returncode

    def _read_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = self._process.poll()
            late, read = time.monotonic() > deadline, False
            if select.select([self._ours], [], [], 0.05)[0]:
                try:
                    self.screen += os.read(self._ours, 65536)
                    read = True
                except OSError:  # the other side is closed
                    time.sleep(0.01)
            if late or not (read or ended is None or condition()):
                pytest.fail(f"waited for {what}; exit code {ended}; the screen shows {self.screen[-2000:]!r}")


def test_the_package_runs_as_the_program():
    result = subprocess.run([sys.executable, "-m", "jaxllm", "--version"], capture_output=True, text=True,
                            timeout=PATIENCE, check=True)
    assert result.stdout == f"jaxllm {jaxllm.__version__}\n"


def test_the_entry_point_is_this_program():
    script = Path(sys.executable).with_name("jaxllm")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert result.stdout.startswith("jaxllm ")
