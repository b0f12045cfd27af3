"""A secret vanishes from a child's command line, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from card.serving.supervision.command_line import conceal

SECRET = "0123456789abcdef" * 4


def test_a_concealed_argument_is_read_by_nobody_any_more() -> None:
    say = "import sys; print(flush=True); sys.stdin.readline()"
    command = [sys.executable, "-c", say, f"--first={SECRET}", f"--again={SECRET}", "plain"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        line = Path(f"/proc/{child.pid}/cmdline")
        assert line.read_bytes().count(SECRET.encode()) == 2
        assert conceal(child.pid, SECRET)
        shown = line.read_bytes()
        assert SECRET.encode() not in shown
        assert b"--first=*" in shown
        assert b"plain" in shown
        child.communicate(b"\n", timeout=10)


def test_a_process_that_is_gone_hides_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(10)
    assert not conceal(child.pid, SECRET)
