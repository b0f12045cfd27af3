"""The bell: who waits for a slot sleeps until `card` rings, and no ring is missed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_process import child, next_line
from serving_double import GEOMETRY, make_pool, slot_request

from card.cache import Pool

FOR_EVER_S = 600.0
LIMIT_S = 60.0
WAITER = """
import sys
from pathlib import Path
from card.cache import Geometry, Pool
pool = Pool.open(Path(sys.argv[1]), int(sys.argv[2]), Geometry(*map(int, sys.argv[3:])))
rings = pool.slot_bell.rings
print("waits", flush=True)
while pool.slot_bell.rings == rings:
    pool.slot_bell.wait(rings, 600.0)
print(pool.slot_bell.rings - rings)
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = make_pool(tmp_path)
    yield made
    made.unlink()


@pytest.fixture
def waiter(pool: Pool, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that waits for the bell."""
    where = [str(tmp_path), str(os.getpid()), *map(str, GEOMETRY.words())]
    with child(sys.executable, "-c", WAITER, *where) as process:
        assert next_line(process) == b"waits"
        yield process


def asleep(process: subprocess.Popen[bytes]) -> None:
    """Returns once the kernel says that the process sleeps."""
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert process.poll() is None
        os.sched_yield()


def test_a_slot_that_is_opened_wakes_another_process(
    pool: Pool, waiter: subprocess.Popen[bytes]
) -> None:
    asleep(waiter)
    pool.card_slot(0).open(slot_request(), pool.new_session_id())
    output, _ = waiter.communicate(timeout=LIMIT_S)
    assert output == b"1\n"


def test_a_ring_before_the_wait_is_not_missed(pool: Pool) -> None:
    rings = pool.slot_bell.rings
    pool.card_slot(0).open(slot_request(), pool.new_session_id())
    pool.card_slot(0).close()
    assert pool.slot_bell.rings == rings + 2
    waiting = threading.Thread(target=pool.slot_bell.wait, args=(rings, FOR_EVER_S), daemon=True)
    waiting.start()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
