"""The cache pool: one file in shared memory, created by `card` and found by the engines.

The file lies in a 0700 directory named after the Triton server's process id, under an unguessable
name, and `card` holds a lock on it for as long as it lives. A file without a lock is left over from
a server that died; the next start sweeps it. A sweep removes a file only while it holds that file's
lock, and a directory only when it is empty. So a process that makes a pool takes the lock and then
checks that its file still has a name. `Pool` uses plain `open` and `mmap`, because the first
process that exits unlinks Python's own shared memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import platform
import secrets
import shutil
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.cache.chains import RemoteSlot
from card.cache.commits import CardSlot, TargetSlot
from card.cache.header import MOST_EPOCHS, Bell, Header, Record, digest_words
from card.cache.layout import (
    MAGIC,
    Geometry,
    SlotState,
    header_dtype,
    slot_dtype,
    whole_lines,
)
from card.cache.tree import DraftSlot

_PREFIX = "card-"


def home_of(directory: Path, server_pid: int) -> Path:
    """The directory of the pool of the server with this process id."""
    return directory / f"{_PREFIX}{os.getuid()}-{server_pid}"


def is_private(directory: Path) -> bool:
    """Whether this is a directory (no link) that this user owns and no other user may enter. In a
    folder such as /dev/shm, where every user may write, another user may have made it."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    others = stat.S_IRWXG | stat.S_IRWXO
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not stat.S_IMODE(found.st_mode) & others
    )


def check_named(path: Path, descriptor: int) -> None:
    """Close the locked file and raise `FileNotFoundError` if a sweep came before the lock."""
    if os.fstat(descriptor).st_nlink == 0:
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "swept while it was made", str(path))


def sweep_pools(directory: Path) -> list[Path]:
    """Remove this user's pools that no process locks; returns the removed directories."""
    removed = []
    for home in filter(is_private, directory.glob(f"{_PREFIX}{os.getuid()}-*")):
        for path in home.glob("*pool-*"):
            _remove_unlocked(path)
        with contextlib.suppress(OSError):  # not empty: in use; gone: another process swept it
            home.rmdir()
            removed.append(home)
    return removed


def _remove_unlocked(path: Path) -> None:
    """Remove a pool's file unless its owner lives."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)


_ATTEMPTS = 100
"""Attempts to make one pool; each fails only if a sweep of another server interrupts it."""


class PoolError(RuntimeError):
    """The pool cannot be created or opened; the message says why and what to do."""


class Pool(Header):
    """The mapped file. `card` calls `Pool.create`; every other process calls `Pool.open`.

    Attributes:
        path: the file.
        geometry: sizes of its slots.
        header: its first fields (see `layout.header_dtype`); `Header` reads and writes them.
        slot_bell: `card` rings it when it opens or closes a slot or takes the pool over, the
            target when it restarts a draft that it had stopped.
        commit_bell: the target rings it when a session begins, ends or is released.
        abandoned: [places] int64: session id of a request that its client cancelled; written by
            the model that answers that client: `postprocessing` or a unary model.
        slots: [slots] structured array (see `layout.slot_dtype`).
    """

    def __init__(self, path: Path, descriptor: int, geometry: Geometry) -> None:
        self.path = path
        self.geometry = geometry
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, pool_bytes(geometry))
        super().__init__(Record(np.frombuffer(self._map, header_dtype(), count=1), 0))
        self.slot_bell = Bell(self.header.words("slot_bell"))
        self.commit_bell = Bell(self.header.words("commit_bell"))
        at = header_dtype().itemsize
        self.abandoned = np.frombuffer(self._map, np.int64, count=geometry.places, offset=at)
        at += _abandoned_bytes(geometry)
        self.slots = np.frombuffer(self._map, slot_dtype(geometry), count=geometry.slots, offset=at)

    # --- life ---------------------------------------------------------------------------------

    @classmethod
    def create(cls, directory: Path, server_pid: int, geometry: Geometry) -> Pool:
        """Create the server's pool, or reopen the pool of an earlier `card`.

        A reopened pool gets a higher epoch and all its slots are closed. Raises `PoolError` when
        another `card` holds it, the directory is unusable or too small, or the machine's stores
        are not ordered.
        """
        if platform.machine() != "x86_64":
            raise PoolError(
                f"the cache pool relies on x86-64's ordering of stores; this is a "
                f"{platform.machine()} machine"
            )
        home = home_of(directory, server_pid)
        try:
            pool = cls._unswept(home, geometry)
        except OSError as error:
            raise PoolError(
                f"cannot create the cache pool under {directory}: {error}; "
                f"it needs {pool_bytes(geometry)} writable bytes there"
            ) from error
        pool.begin_epoch()
        pool.slots["state"][pool.slots["state"] != SlotState.FREE] = SlotState.CLOSED
        pool.slot_bell.ring()
        return pool

    @classmethod
    def _unswept(cls, home: Path, geometry: Geometry) -> Pool:
        """A pool in `home`, made again if another server's sweep removed it meanwhile."""
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(FileNotFoundError):
                return cls._made(home, geometry)
        return cls._made(home, geometry)

    @classmethod
    def _made(cls, home: Path, geometry: Geometry) -> Pool:
        with contextlib.suppress(FileExistsError):  # `exist_ok` raises it if swept just then
            home.mkdir(mode=0o700)
        if not is_private(home):
            home.lstat()  # raises what is caught above if it was swept just then
            raise PermissionError(errno.EPERM, "another user can read this directory", str(home))
        return cls._reopen(home, geometry) or cls._create(home, geometry)

    @classmethod
    def _create(cls, home: Path, geometry: Geometry) -> Pool:
        for stale in home.iterdir():
            stale.unlink(missing_ok=True)
        path = home / f"pool-{secrets.token_hex(16)}"
        draft = path.with_name(f".{path.name}")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Only a sweep can hold the lock of a new file, and only for a moment.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        check_named(draft, descriptor)
        try:
            # Reserve the memory now: a full tmpfs must refuse here, not kill a process later.
            os.posix_fallocate(descriptor, 0, pool_bytes(geometry))
        except OSError:
            os.close(descriptor)
            draft.unlink()
            raise
        pool = cls(path, descriptor, geometry)
        pool.header["geometry"][:] = geometry.words()
        pool.header["magic"] = MAGIC
        draft.rename(path)
        return pool

    @classmethod
    def _reopen(cls, home: Path, geometry: Geometry) -> Pool | None:
        for path in home.glob("pool-*"):
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise PoolError(f"another process owns the cache pool {path}") from None
            check_named(path, descriptor)
            if (pool := cls._mapped(path, descriptor, geometry)) is not None:
                return pool
        return None

    @classmethod
    def _mapped(cls, path: Path, descriptor: int, geometry: Geometry) -> Pool | None:
        """The pool in an open file; None, and the file closed, if it was made with other sizes."""
        if os.fstat(descriptor).st_size != pool_bytes(geometry):
            os.close(descriptor)
            return None
        pool = cls(path, descriptor, geometry)
        if pool._is_ours():
            return pool
        pool.close()
        return None

    @classmethod
    def open(cls, directory: Path, server_pid: int, geometry: Geometry) -> Pool | None:
        """Open the pool of the server with `server_pid`; None while there is none."""
        home = home_of(directory, server_pid)
        if not is_private(home):
            return None
        for path in home.glob("pool-*"):
            try:
                descriptor = os.open(path, os.O_RDWR)
            except FileNotFoundError:
                continue
            if (pool := cls._mapped(path, descriptor, geometry)) is not None:
                return pool
            raise PoolError(
                f"the cache pool {path} was made with other settings "
                f"(cache or limits); restart the server so that all models read the same ones"
            )
        return None

    def _is_ours(self) -> bool:
        return bool(
            self.header["magic"] == MAGIC
            and 0 <= self.epoch < MOST_EPOCHS
            and tuple(self.header["geometry"].tolist()) == self.geometry.words()
        )

    def close(self) -> None:
        """Unmap. Views of the pool must not be used afterwards."""
        del self.header, self.abandoned, self.slots, self.slot_bell, self.commit_bell
        # A slot's view may still refer to the memory; then it goes with the process.
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._descriptor)

    def unlink(self) -> None:
        """Remove the file and its directory."""
        shutil.rmtree(self.path.parent, ignore_errors=True)

    # --- slots --------------------------------------------------------------------------------

    @property
    def states(self) -> NDArray[np.int64]:
        """[slots] int64, a live view."""
        return self.slots["state"]

    @property
    def session_ids(self) -> NDArray[np.int64]:
        """[slots] int64, a live view."""
        return self.slots["session_id"]

    def card_slot(self, index: int) -> CardSlot:
        return CardSlot(Record(self.slots, index), index, self.slot_bell)

    def target_slot(self, index: int) -> TargetSlot:
        return TargetSlot(Record(self.slots, index), index, self.commit_bell)

    def draft_slot(self, index: int) -> DraftSlot:
        return DraftSlot(Record(self.slots, index), index)

    def remote_slot(self, index: int) -> RemoteSlot:
        return RemoteSlot(Record(self.slots, index), index)

    def drafted_by(self, digest: bytes) -> int | None:
        """Index of the slot with an open session of this draft key's digest; None: none has it."""
        is_it = (self.slots["draft_key_digest"] == digest_words(digest)).all(axis=1)
        found = (is_it & (self.states == SlotState.OPEN)).nonzero()[0]
        return int(found[0]) if found.size else None


def pool_bytes(geometry: Geometry) -> int:
    """Size of a pool's file in bytes."""
    slots_bytes = geometry.slots * slot_dtype(geometry).itemsize
    return header_dtype().itemsize + _abandoned_bytes(geometry) + slots_bytes


def _abandoned_bytes(geometry: Geometry) -> int:
    return whole_lines(geometry.places * np.dtype(np.int64).itemsize)
