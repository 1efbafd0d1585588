"""A job of two processes with two devices each, over Gloo on this machine, as tests start and watch it."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SCRIPT = Path(__file__).parent / "job_script.py"
MOST_SECONDS = 60
"""After the loss of a process the others have ended; it takes a second where its connections close."""
STARTING_SECONDS = 240


class Job:
    """Both processes of a scenario; ``failing`` is the one that fails in it."""

    def __init__(self, scenario, failing=1, folder=""):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {**os.environ, "COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "NUM_PROCESSES": "2",
                       "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu",
                       "PYTHONPATH": str(SCRIPT.parent.parent)}
        # Executables of several processes are not whole when they are loaded again (jaxlib 0.12).
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.processes = [
            subprocess.Popen([sys.executable, str(SCRIPT), scenario, str(failing), str(folder)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env={**environment, "PROCESS_ID": str(number)})
            for number in range(2)]

    def said(self, number):
        """The next line of a process."""
        return next(_records(self.processes[number].stdout), "nothing")

    def end(self, number, seconds=MOST_SECONDS):
        """A process's exit code and what it wrote; it has to end by itself within so many seconds."""
        out, errors = self.processes[number].communicate(timeout=seconds)
        return self.processes[number].returncode, list(_records(out.splitlines())), errors

    def both(self, seconds=STARTING_SECONDS):
        """The exit codes of both, what they wrote, and their errors; read at the same time, as pipes hold little."""
        with ThreadPoolExecutor(2) as threads:
            return tuple(zip(*threads.map(lambda number: self.end(number, seconds), range(2)), strict=True))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def _records(lines):
    """Those that the script wrote; Gloo writes others."""
    return (json.loads(line) for line in lines if line.startswith("{"))


def name(number):
    return f"process {number} of 2 on host {socket.gethostname()}"
