"""A secret vanishes from a child's command line, and nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path

from child_process import child, next_line

from card.serving.supervision.command_line import conceal

SECRET = "0123456789abcdef" * 4


def test_a_concealed_argument_is_read_by_nobody_any_more() -> None:
    say = "import sys; print(flush=True); sys.stdin.readline()"
    command = [sys.executable, "-c", say, f"--first={SECRET}", f"--again={SECRET}", "plain"]
    with child(*command) as process:
        next_line(process)
        line = Path(f"/proc/{process.pid}/cmdline")
        assert line.read_bytes().count(SECRET.encode()) == 2
        assert conceal(process.pid, SECRET)
        shown = line.read_bytes()
        assert SECRET.encode() not in shown
        assert b"--first=*" in shown
        assert b"plain" in shown
        process.communicate(b"\n", timeout=10)


def test_a_process_that_is_gone_hides_nothing() -> None:
    with child(sys.executable, "-c", "") as process:
        process.wait(10)
    assert not conceal(process.pid, SECRET)
