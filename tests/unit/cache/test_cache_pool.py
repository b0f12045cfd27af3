"""The pool: found, owned and reopened by the right processes, refused by all others."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_process import request_of

from card.cache import Geometry, Pool, PoolError, SlotState
from card.cache.layout import CACHE_LINE, header_dtype, slot_dtype
from card.cache.pool import pool_bytes, sweep_pools

GEOMETRY = Geometry(slots=3, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16)
SERVER = 4242


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool.create(tmp_path, SERVER, GEOMETRY)


@pytest.fixture
def old_umask() -> Iterator[None]:
    """A careless umask must not open the pool to others."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("old_umask")
def test_pool_when_it_is_made_is_private_and_has_a_random_name(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SERVER, GEOMETRY)
    assert stat.S_IMODE(pool.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(pool.path.stat().st_mode) == 0o600
    assert re.fullmatch(r"pool-[0-9a-f]{32}", pool.path.name)


@pytest.mark.parametrize("trap", ["open to all", "a link", "a file"])
def test_pool_when_a_file_of_another_owner_has_its_name_leaves_that_file(
    tmp_path: Path, trap: str
) -> None:
    """Who may write in /dev/shm can guess the directory's name before `card` makes it."""
    home, elsewhere = tmp_path / f"card-{os.getuid()}-{SERVER}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if trap == "open to all":
        home.mkdir()
        home.chmod(0o777)
    elif trap == "a link":
        home.symlink_to(elsewhere)
    else:
        home.write_bytes(b"\0")
    if trap != "a file":
        (home / "pool-0").write_bytes(b"\0" * pool_bytes(GEOMETRY))
    before = sorted(tmp_path.rglob("*"))
    assert Pool.open(tmp_path, SERVER, GEOMETRY) is None
    with pytest.raises(PoolError, match=f"another user can read this directory: '{home}'"):
        Pool.create(tmp_path, SERVER, GEOMETRY)
    assert sweep_pools(tmp_path) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pool_that_is_owned_is_not_created_again(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"another process owns .*pool-"):
        Pool.create(tmp_path, SERVER, GEOMETRY)
    assert pool.epoch == 1
    assert pool.path.exists()


def test_a_restarted_card_takes_the_pool_over(pool: Pool, tmp_path: Path) -> None:
    first = pool.new_session_id()
    pool.card_slot(0).open(request_of([1], 2), first)
    path = pool.path
    pool.close()
    again = Pool.create(tmp_path, SERVER, GEOMETRY)
    assert again.path == path
    assert again.epoch == 2
    assert again.states.tolist() == [SlotState.CLOSED, SlotState.FREE, SlotState.FREE]
    assert again.session_ids[0] == first


def test_session_ids_never_repeat_across_epochs(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(4):
        pool = Pool.create(tmp_path, SERVER, GEOMETRY)
        seen += [pool.new_session_id() for _ in range(5)]
        pool.close()
    assert seen == sorted(set(seen))
    assert len({after - before for before, after in pairwise(seen)}) > 4, "none can be guessed"
    assert seen[0] > 0, "0 is what an untouched slot holds"


def test_sweep_when_owners_are_gone_removes_their_files_alone(pool: Pool, tmp_path: Path) -> None:
    dead = Pool.create(tmp_path, SERVER + 1, GEOMETRY)
    dead.close()
    half_made = pool.path.parent.with_name(f"card-{os.getuid()}-{SERVER + 2}")
    half_made.mkdir(mode=0o700)
    (half_made / ".pool-torn").write_bytes(b"")
    stranger = tmp_path / "card-of-another-user"
    stranger.mkdir()
    removed = sweep_pools(tmp_path)
    assert sorted(removed) == sorted([dead.path.parent, half_made])
    assert sorted(tmp_path.iterdir()) == sorted([pool.path.parent, stranger])
    pool.unlink()
    assert sorted(tmp_path.iterdir()) == [stranger]


@pytest.mark.parametrize("step", ["mkdir", "open", "flock"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("leftover", [False, True], ids=["a new one", "one left empty"])
def test_a_sweep_between_two_steps_of_making_a_pool_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str, leftover: bool
) -> None:
    """Another server starts, and sweeps, just before or after the directory or file is taken."""
    module = {"mkdir": os, "open": os, "flock": fcntl}[step]
    real = getattr(module, step)
    sweeps: list[str] = []

    def sweep_if(now: str) -> None:
        if now == when and len(sweeps) < 3:
            sweeps.append(step)
            with monkeypatch.context() as patch:
                patch.setattr(module, step, real)
                sweep_pools(tmp_path)

    def swept(*arguments: Any) -> Any:
        sweep_if("before")
        try:
            return real(*arguments)
        finally:
            sweep_if("after")

    if leftover:
        (tmp_path / f"card-{os.getuid()}-{SERVER}").mkdir(mode=0o700)
    monkeypatch.setattr(module, step, swept)
    pool = Pool.create(tmp_path, SERVER, GEOMETRY)
    assert sweeps
    assert sweep_pools(tmp_path) == []
    found = Pool.open(tmp_path, SERVER, GEOMETRY)
    assert found is not None
    assert found.path == pool.path


def test_a_full_file_system_is_refused_when_the_pool_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process finds a pool before it is complete."""
    seen = []

    def full(*_: int) -> None:
        seen.append(Pool.open(tmp_path, SERVER, GEOMETRY))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(PoolError, match=r"No space left.*needs \d+ writable bytes") as refused:
            Pool.create(tmp_path, SERVER, GEOMETRY)
    assert seen == [None]
    assert str(tmp_path) in str(refused.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], "nothing is left behind"
    assert Pool.create(tmp_path, SERVER, GEOMETRY).epoch == 1


@pytest.mark.parametrize(
    "other",
    [
        Geometry(slots=4, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16),
        Geometry(slots=3, nodes=64, prompt=32, output=32, bad_words=16, bad_word_tokens=4),
    ],
    ids=["other size", "same size"],
)
def test_a_pool_of_another_geometry_is_refused(pool: Pool, tmp_path: Path, other: Geometry) -> None:
    with pytest.raises(PoolError, match="other settings"):
        Pool.open(tmp_path, SERVER, other)
    pool.close()
    fresh = Pool.create(tmp_path, SERVER, other)
    assert fresh.path != pool.path, "a restarted card with other settings starts anew"
    assert not pool.path.exists()


class Unhashed(str):
    """A key that is too much work to take the digest of."""

    def encode(self, *_: object) -> bytes:
        raise AssertionError("it was taken")


def test_a_machine_without_ordered_stores_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(PoolError, match="aarch64"):
        Pool.create(tmp_path, SERVER, GEOMETRY)
    assert list(tmp_path.iterdir()) == []


def test_only_the_key_that_card_drew_is_admitted(pool: Pool, tmp_path: Path) -> None:
    assert not pool.admits("")
    old = pool.new_key()
    key = pool.new_key()
    engine = Pool.open(tmp_path, SERVER, GEOMETRY)
    assert engine is not None
    assert engine.admits(key)
    for stranger in (old, "", key[:-1], key.upper(), key + "0"):
        assert not engine.admits(stranger)
    assert not engine.admits(Unhashed("0" * (1 << 20)))
    assert key.encode() not in pool.path.read_bytes(), "the key itself stays out of the file"


def test_every_field_is_an_aligned_word_and_writers_share_no_cache_line() -> None:
    writers = {
        "card": ("state", "bad_word_tokens"),
        "target": ("released", "log_probability"),
        "draft": ("flip", "node_score"),
    }
    slot = slot_dtype(GEOMETRY)
    for dtype in (slot, header_dtype()):
        assert dtype.itemsize % CACHE_LINE == 0
        assert dtype.fields is not None
        for kind, offset, *_ in dtype.fields.values():
            assert kind.base.itemsize == 8
            assert offset % 8 == 0
    fields = slot.fields
    assert fields is not None
    lines: list[int] = []
    for first, last in writers.values():
        start = fields[first][1] // CACHE_LINE
        stop = (fields[last][1] + fields[last][0].itemsize - 1) // CACHE_LINE
        lines += [start, stop]
    assert all(lines[i] < lines[i + 1] for i in range(1, len(lines) - 1, 2))
    np.testing.assert_array_equal(np.sort(lines), lines)
