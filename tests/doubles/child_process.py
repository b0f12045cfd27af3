"""Child processes that end with the test that started them, however that test ends.

`subprocess.Popen` as a context waits for its child: a failing test would wait for ever for one
that nothing tells to end, and one that outlives its test keeps the run's output open.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from card.serving.child import bound


@contextmanager
def child(
    *command: str,
    stderr: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with pipes for its input and output, killed at the end of the `with`."""
    with _heeding_interrupts():
        process = subprocess.Popen(
            bound(signal.SIGKILL, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """A shell that runs the tests in the background ignores SIGINT, and children inherit that."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def next_line(process: subprocess.Popen[bytes]) -> bytes:
    """What the child says next, without the end of the line; blocks until it does."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip(b"\n")
