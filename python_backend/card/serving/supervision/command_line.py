"""Takes a secret out of another process's command line, which every user of a machine may read.

The server takes the header that opens its restricted APIs on its command line only. It copies its
options when it starts; from then on the text in the arguments serves nobody but onlookers.
"""

from __future__ import annotations

from pathlib import Path

_ARGUMENTS_START, _ARGUMENTS_END = 47, 48
"""Places of arg_start and arg_end in /proc/PID/stat, counted from 0 (proc(5) counts from 1)."""
_COVER = b"*"


def conceal(pid: int, secret: str) -> bool:
    """Overwrite `secret` in the arguments of the child `pid`; whether it is nowhere there now.

    False where the kernel forbids it (no ptrace access to one's own children) or the process is
    gone: the secret then stays as visible as it was.
    """
    needle = secret.encode()
    process = Path(f"/proc/{pid}")
    try:
        start, end = _arguments(process)
        with (process / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            arguments = memory.read(end - start)
            at = arguments.find(needle)
            while at >= 0:
                memory.seek(start + at)
                memory.write(_COVER * len(needle))
                at = arguments.find(needle, at + len(needle))
        return needle not in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _arguments(process: Path) -> tuple[int, int]:
    """First address of the argument strings and the address behind their last."""
    # The process's name, in parentheses, may hold anything.
    fields = (process / "stat").read_text(encoding="ascii", errors="replace")
    rest = fields.rpartition(")")[2].split()
    return int(rest[_ARGUMENTS_START - 2]), int(rest[_ARGUMENTS_END - 2])
