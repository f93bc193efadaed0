"""Interrupting all benches: the one that runs takes down what it has set up before anything ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

BENCH = """
import sys, time
from pathlib import Path
from bench.runs import end_cleanly
end_cleanly()
mark = Path(sys.argv[1])
mark.touch()
try:
    time.sleep(60)
finally:
    time.sleep(1.0)  # taking a lab down takes its time
    mark.unlink()
"""
ALL = """
import sys
from bench import all
from bench.runs import end_cleanly
end_cleanly()
getattr(all, sys.argv[1])("a bench", *sys.argv[2:])
"""


@pytest.mark.parametrize("runs", ["_run", "_run_and_keep"])
@pytest.mark.parametrize("terminal", [True, False], ids=["Ctrl-C", "SIGTERM"])
def test_what_is_set_up_is_taken_down_first(tmp_path, runs, terminal):
    script, mark = tmp_path / "one.py", tmp_path / "set-up"
    script.write_text(BENCH)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "operator"))}
    process = subprocess.Popen([sys.executable, "-c", ALL, runs, str(script), str(mark)], cwd=ROOT, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not mark.exists():
            assert process.poll() is None and time.monotonic() < deadline, "the bench did not begin"
            time.sleep(0.02)
        time.sleep(0.1)
        if terminal:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        assert process.wait(120) != 0
        assert not mark.exists(), "it ended before its bench had taken down what it had set up"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
