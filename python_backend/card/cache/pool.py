"""The cache pool: one file in shared memory, created by `card` and found by the engines.

The file lies in a 0700 directory named after the Triton server's process id, under an unguessable
name, and `card` holds a lock on it for as long as it lives: what nobody locks is left over from a
server that died and is swept at the next start. A sweep removes a file only while it holds that
file's lock, and a directory only when it is empty; so whoever makes a pool need only look, once it
has the lock, whether its file still has a name. It is opened with plain `open` and `mmap`, because
Python's own shared memory is unlinked by the first process that exits.
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
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.cache.bell import Bell
from card.cache.card_slot import CardSlot
from card.cache.draft_slot import DraftSlot
from card.cache.home import check_named, home_of, is_private
from card.cache.layout import (
    BEATING,
    ENGINES,
    MAGIC,
    EngineState,
    Geometry,
    SlotState,
    header_dtype,
    slot_dtype,
    whole_lines,
)
from card.cache.record import Record
from card.cache.remote_slot import RemoteSlot
from card.cache.request import digest_of, digest_words
from card.cache.target_slot import TargetSlot

_EPOCH_SHIFT = 48
_STRIDE_BITS = 24
_KEY_BYTES = 32
_MOST_EPOCHS = 1 << (63 - _EPOCH_SHIFT)
_ATTEMPTS = 100
"""Sweeps that may come between the steps of making one pool."""


class PoolError(RuntimeError):
    """The pool cannot be created or opened; the message says why and what to do."""


class Pool:
    """The mapped file. `Pool.create` is for `card`; everybody else opens it.

    Attributes:
        path: the file.
        geometry: sizes of its slots.
        header: [1] structured array (see `layout.header_dtype`).
        slot_bell: rung by `card` whenever it opened or closed a slot, or took the pool over, and by
            the target when it wants candidates of a draft that it had stopped.
        commit_bell: rung by the target when a session begins, ends, or is let go.
        abandoned: [places] int64: session id of the request whose client left; written by the
            model that answers that client, `postprocessing` or one of those that answer once.
        slots: [slots] structured array (see `layout.slot_dtype`).
    """

    def __init__(self, path: Path, descriptor: int, geometry: Geometry) -> None:
        self.path = path
        self.geometry = geometry
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, pool_bytes(geometry))
        self.header = np.frombuffer(self._map, header_dtype(), count=1)
        self.slot_bell = Bell(self.header["slot_bell"])
        self.commit_bell = Bell(self.header["commit_bell"])
        at = header_dtype().itemsize
        self.abandoned = np.frombuffer(self._map, np.int64, count=geometry.places, offset=at)
        at += _abandoned_bytes(geometry)
        self.slots = np.frombuffer(self._map, slot_dtype(geometry), count=geometry.slots, offset=at)

    # --- life ---------------------------------------------------------------------------------

    @classmethod
    def create(cls, directory: Path, server_pid: int, geometry: Geometry) -> Pool:
        """Create the server's pool, or reopen the one that a `card` before us left.

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
        header = pool.header[0]
        header["epoch"] += 1
        header["card_pid"] = 0  # nothing has been heard of this one yet
        pool.slots["state"][pool.slots["state"] != SlotState.FREE] = SlotState.CLOSED
        header["next_session_id"] = (int(header["epoch"]) << _EPOCH_SHIFT) + 1
        pool.slot_bell.ring()
        return pool

    @classmethod
    def _unswept(cls, home: Path, geometry: Geometry) -> Pool:
        """A pool in `home`, made again if another server's sweep took it from under our hands."""
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
            raise PermissionError(errno.EPERM, "somebody else could read what is in it", str(home))
        return cls._reopen(home, geometry) or cls._create(home, geometry)

    @classmethod
    def _create(cls, home: Path, geometry: Geometry) -> Pool:
        for stale in home.iterdir():
            stale.unlink(missing_ok=True)
        path = home / f"pool-{secrets.token_hex(16)}"
        draft = path.with_name(f".{path.name}")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Nobody but a sweep, which holds it for a moment, can have the lock of a new file.
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
        pool.header["geometry"][0] = geometry.words()
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
            self.header["magic"][0] == MAGIC
            and 0 <= self.epoch < _MOST_EPOCHS
            and tuple(self.header["geometry"][0].tolist()) == self.geometry.words()
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

    # --- epoch, session ids, key --------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Raised by every `card` that takes the pool over."""
        return int(self.header["epoch"][0])

    def new_session_id(self) -> int:
        """A session id never used before; higher epochs give higher numbers. `card` only.

        Strides are random, so that nobody can name a session that is not theirs.
        """
        header = self.header[0]
        session_id = int(header["next_session_id"])
        header["next_session_id"] = session_id + 1 + secrets.randbits(_STRIDE_BITS)
        return session_id

    def new_key(self) -> str:
        """Draw the key that admits engines; only its digest stays in the pool. `card` only."""
        key = secrets.token_hex(_KEY_BYTES)
        self.header["key_digest"][0] = digest_words(digest_of(key))
        return key

    def admits(self, key: str) -> bool:
        """Whether `key` is the one that `card` drew."""
        if len(key) != 2 * _KEY_BYTES:  # a digest of anything longer is work for strangers
            return False
        expected = self.header["key_digest"][0].tobytes()
        return secrets.compare_digest(digest_of(key), expected)

    # --- heartbeats ---------------------------------------------------------------------------

    def beat(self, process: str, state: EngineState | None = None) -> None:
        """Tell that `process` (this one, of `BEATING`) lives, and what it does if it is an engine.

        Its id comes last: who reads it reads no time of its predecessor.
        """
        _check_beating(process)
        header = self.header[0]
        if state is not None:
            header[f"{process}_state"] = state
        header[f"{process}_heartbeat_ns"] = time.monotonic_ns()
        header[f"{process}_pid"] = os.getpid()

    def pid(self, process: str) -> int:
        """Whose beats these are; 0 before the first."""
        _check_beating(process)
        return int(self.header[f"{process}_pid"][0])

    def silence_s(self, process: str) -> float:
        """Seconds since the last heartbeat of `process` (infinite if it never beat)."""
        _check_beating(process)
        last = int(self.header[f"{process}_heartbeat_ns"][0])
        return (time.monotonic_ns() - last) / 1e9 if last else float("inf")

    # --- engines ------------------------------------------------------------------------------

    def engine_state(self, engine: str) -> EngineState:
        """What `engine` says of itself; what is no state at all is none that helps anybody."""
        try:
            return EngineState(int(self.header[f"{engine}_state"][0]))
        except ValueError:
            return EngineState.ABSENT

    def is_alive(self, engine: str, timeout_s: float) -> bool:
        """Whether `engine` is attached and was heard within `timeout_s`."""
        attached = self.engine_state(engine) is EngineState.ATTACHED
        return attached and self.silence_s(engine) <= timeout_s

    def stop_draft(self, *, stopped: bool) -> None:
        """Whether the draft leaves all sessions of CARD alone for now; the target's word."""
        self.header["draft_stopped"] = stopped

    @property
    def draft_stopped(self) -> bool:
        return bool(self.header["draft_stopped"][0])

    @property
    def draft_pass_ms(self) -> float:
        """What a pass of the draft takes while nobody else computes; 0: it has not said."""
        return float(self.header["draft_pass_ms"][0])

    def tell_draft_pass(self, ms: float) -> None:
        """The draft's word on that."""
        self.header["draft_pass_ms"] = ms

    def count_pass(self) -> None:
        """The target made one more pass."""
        self.header["target_passes"] += 1

    @property
    def target_passes(self) -> int:
        return int(self.header["target_passes"][0])

    # --- refusals -----------------------------------------------------------------------------

    @property
    def refusals(self) -> NDArray[np.int64]:
        """[MAX_REFUSALS] int64, a live view: requests that `preprocessing` refused, by reason."""
        return self.header["refusals"][0]  # type: ignore[no-any-return]

    def count_refusal(self, reason: int) -> None:
        """`preprocessing` only."""
        self.header["refusals"][0, reason] += 1

    def count_denial(self, engine: str) -> None:
        """Count one attach request without the key; for `engine` alone."""
        self.header[f"{engine}_denials"] += 1

    @property
    def denials(self) -> int:
        """Attach requests without the key that the engines refused."""
        return sum(int(self.header[f"{engine}_denials"][0]) for engine in ENGINES)

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
        """Index of the slot whose open session has the draft key of this digest; None: none has."""
        is_it = (self.slots["draft_key_digest"] == digest_words(digest)).all(axis=1)
        found = (is_it & (self.states == SlotState.OPEN)).nonzero()[0]
        return int(found[0]) if found.size else None


def pool_bytes(geometry: Geometry) -> int:
    """Size of a pool's file in bytes."""
    slots_bytes = geometry.slots * slot_dtype(geometry).itemsize
    return header_dtype().itemsize + _abandoned_bytes(geometry) + slots_bytes


def _abandoned_bytes(geometry: Geometry) -> int:
    return whole_lines(geometry.places * np.dtype(np.int64).itemsize)


def _check_beating(process: str) -> None:
    if process not in BEATING:
        raise ValueError(f"process {process!r} is unknown; allowed: {', '.join(BEATING)}")
