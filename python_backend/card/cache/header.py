"""The words of the pool, its first bytes, and the bells that wake the processes which share it.

The header holds the session ids, the heartbeats, and what engines and `preprocessing` count.

A bell is a futex on a word of the pool. A waiting process passes the word's value as it last saw
it. The kernel lets the process sleep only while the word has that value. So no ring is lost between
a look and a wait.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import secrets
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from card.cache.layout import BEATING, ENGINES, WAYS, EngineState

_FORMATS: Final = {"i": "q", "u": "Q", "f": "d"}
"""Format of a memoryview's words, by NumPy kind."""


class Record:
    """The fields of one slot, or of the header, by name: a single word as a number, other fields
    as live arrays or as a flat sequence of words.

    Memoryviews load or store all eight bytes of a word at once, like NumPy's records, in a third
    of the time.

    records  [records] of `layout.slot_dtype` or `layout.header_dtype`
    """

    __slots__ = ("_arrays", "_fields", "_words")

    def __init__(self, records: NDArray[np.void], index: int) -> None:
        self._words: dict[str, memoryview[Any]] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._fields: dict[str, memoryview[Any]] = {}
        row = records[index : index + 1]
        everything = row.view(np.uint8).data
        for name, (kind, at, *_) in (row.dtype.fields or {}).items():
            field = everything[at : at + kind.itemsize].cast(_FORMATS[kind.base.kind])  # type: ignore[call-overload]
            self._fields[name] = field
            if kind.shape:
                self._arrays[name] = row[name][0]
            else:
                self._words[name] = field

    def __getitem__(self, name: str) -> Any:
        word = self._words.get(name)
        return self._arrays[name] if word is None else word[0]

    def __setitem__(self, name: str, value: float) -> None:
        self._words[name][0] = value

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def words(self, name: str) -> memoryview[Any]:
        """The flat memory of a field of any number of dimensions."""
        return self._fields[name]

    def read(self, name: str, at: int, count: int) -> list[Any]:
        """Copy `count` words of a field, from word `at` on."""
        found: list[Any] = self._fields[name][at : at + count].tolist()
        return found

    def write(self, name: str, at: int, values: Sequence[float] | NDArray[Any]) -> None:
        """Store words of a field, from word `at` on. Raises `ValueError` if it is shorter."""
        field = self._fields[name]
        field[at : at + len(values)] = array(field.format, values)


def digest_of(key: str) -> bytes:
    """SHA-256 of a key; the pool never holds the key itself."""
    return hashlib.sha256(key.encode()).digest()


def digest_words(digest: bytes) -> NDArray[np.int64]:
    """A digest as the pool's words, [DIGEST_WORDS] int64."""
    return np.frombuffer(digest, np.int64)


_EPOCH_SHIFT = 48
MOST_EPOCHS = 1 << (63 - _EPOCH_SHIFT)
_STRIDE_BITS = 24
_KEY_BYTES = 32
_WAY_PASSES = 512
"""Passes of `auto` that the figures of its ways remember: some seconds of serving."""


class Header:
    """The header of a pool.

    header  its fields (see `layout.header_dtype`)
    """

    def __init__(self, header: Record) -> None:
        self.header = header

    # --- epoch, session ids, key --------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Raise the epoch for a `card` that takes the pool over, and clear its heartbeat."""
        header = self.header
        header["epoch"] += 1
        header["card_pid"] = 0
        header["next_session_id"] = (header["epoch"] << _EPOCH_SHIFT) + 1

    @property
    def epoch(self) -> int:
        """Raised by every `card` that takes the pool over."""
        return int(self.header["epoch"])

    def new_session_id(self) -> int:
        """A session id never used before; higher epochs give higher numbers. `card` only.

        Strides are random, so that a client cannot guess the id of another client's session.
        """
        header = self.header
        session_id = int(header["next_session_id"])
        header["next_session_id"] = session_id + 1 + secrets.randbits(_STRIDE_BITS)
        return session_id

    def new_key(self) -> str:
        """Draw the key that admits engines; only its digest stays in the pool. `card` only."""
        key = secrets.token_hex(_KEY_BYTES)
        self.header["key_digest"][:] = digest_words(digest_of(key))
        return key

    def admits(self, key: str) -> bool:
        """Whether `key` is the one that `card` drew."""
        if len(key) != 2 * _KEY_BYTES:  # a digest of anything longer is work for strangers
            return False
        expected = self.header["key_digest"].tobytes()
        return secrets.compare_digest(digest_of(key), expected)

    @property
    def token(self) -> str:
        """Known to processes that have the pool open, and to no client."""
        return str(self.header["key_digest"].tobytes().hex())

    # --- heartbeats ---------------------------------------------------------------------------

    def beat(self, process: str, state: EngineState | None = None) -> None:
        """Store a heartbeat of `process` (this one, of `BEATING`) and, for an engine, its state.

        The process id is stored last, so that a reader of the id never reads the time of the
        process before.
        """
        _check_beating(process)
        header = self.header
        if state is not None:
            header[f"{process}_state"] = state
        header[f"{process}_heartbeat_ns"] = time.monotonic_ns()
        header[f"{process}_pid"] = os.getpid()

    def pid(self, process: str) -> int:
        """Process id of the process that beats; 0 before the first heartbeat."""
        _check_beating(process)
        return int(self.header[f"{process}_pid"])

    def silence_s(self, process: str) -> float:
        """Seconds since the last heartbeat of `process` (infinite if it never beat)."""
        _check_beating(process)
        last = int(self.header[f"{process}_heartbeat_ns"])
        return (time.monotonic_ns() - last) / 1e9 if last else float("inf")

    # --- engines ------------------------------------------------------------------------------

    def engine_state(self, engine: str) -> EngineState:
        """The state that `engine` reports; an unknown value counts as `EngineState.ABSENT`."""
        try:
            return EngineState(self.header[f"{engine}_state"])
        except ValueError:
            return EngineState.ABSENT

    def is_alive(self, engine: str, timeout_s: float) -> bool:
        """Whether `engine` is attached and beat within `timeout_s`."""
        attached = self.header[f"{engine}_state"] == EngineState.ATTACHED
        return attached and self.silence_s(engine) <= timeout_s

    def stop_draft(self, *, stopped: bool) -> None:
        """Stop or restart drafting for all sessions of pacing CARD; only the target calls it."""
        self.header["draft_stopped"] = stopped

    @property
    def draft_stopped(self) -> bool:
        return bool(self.header["draft_stopped"])

    @property
    def draft_pass_ms(self) -> float:
        """Time of a draft pass while the target does not compute, in ms; 0: not reported yet."""
        return float(self.header["draft_pass_ms"])

    def tell_draft_pass(self, ms: float) -> None:
        """Store that time; only the draft calls it."""
        self.header["draft_pass_ms"] = ms

    def count_pass(self) -> None:
        """Count one pass of the target."""
        self.header["target_passes"] += 1

    @property
    def target_passes(self) -> int:
        return int(self.header["target_passes"])

    def count_way(self, way: str, tokens: int, seconds: float) -> None:
        """Count one pass of `auto`, of all its sessions together; only the target calls it.

        Earlier passes fade. A way that is not in use keeps its tokens per second.

        way  one of `WAYS`
        """
        index = WAYS.index(way)
        for name, amount in (("way_tokens", tokens), ("way_seconds", seconds)):
            figures = self.header[name]
            figures *= 1.0 - 1.0 / _WAY_PASSES
            figures[index] += amount

    def ways(self) -> dict[str, tuple[float, float]]:
        """Of each way of `auto`: tokens per second in the latest passes that went this way, and
        the way's share of the time of the latest passes; 0 before the first pass."""
        tokens, seconds = self.header["way_tokens"].copy(), self.header["way_seconds"].copy()
        per_s = np.divide(tokens, seconds, out=np.zeros_like(tokens), where=seconds > 0)
        shares = seconds / (seconds.sum() or 1.0)
        return dict(zip(WAYS, zip(per_s.tolist(), shares.tolist(), strict=True), strict=True))

    # --- refusals -----------------------------------------------------------------------------

    @property
    def refusals(self) -> NDArray[np.int64]:
        """[MAX_REFUSALS] int64, a live view: requests that `preprocessing` refused, by reason."""
        return self.header["refusals"]  # type: ignore[no-any-return]

    def count_refusal(self, reason: int) -> None:
        """`preprocessing` only."""
        self.header["refusals"][reason] += 1

    def count_denial(self, engine: str) -> None:
        """Count one attach request without the key; for `engine` alone."""
        self.header[f"{engine}_denials"] += 1

    @property
    def denials(self) -> int:
        """Attach requests without the key that the engines refused."""
        return sum(int(self.header[f"{engine}_denials"]) for engine in ENGINES)


def _check_beating(process: str) -> None:
    if process not in BEATING:
        raise ValueError(f"process {process!r} is unknown; allowed: {', '.join(BEATING)}")


_SYS_FUTEX = 202  # on x86-64, the only machine that a pool works on
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_EVERYBODY = 2**31 - 1
WITHOUT_FUTEX_S = 0.004
"""Seconds between two looks where the kernel (or a sandbox) offers no futex."""

_libc = ctypes.CDLL(None, use_errno=True)  # its calls let other threads run meanwhile


Futex = Callable[[ctypes.c_void_p, int, int, Any], int]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bell:
    """One word of the pool's header.

    If two processes ring in the same instant (`card` and the target, TensorRT-LLM's worker and its
    Triton process), one ring may be lost. Every waiting process therefore looks again after its
    timeout.

    word   one of int64, in the shared mapping; the kernel looks at its lower half
    futex  the kernel's call
    """

    def __init__(self, word: memoryview[Any], futex: Futex | None = None) -> None:
        self._word = word
        self._futex = futex or _futex
        self._address = ctypes.c_void_p(ctypes.addressof(ctypes.c_int64.from_buffer(word)))

    @property
    def rings(self) -> int:
        """Number of rings so far; read it before looking at what the bell announces."""
        return int(self._word[0])

    def ring(self) -> None:
        """Wake every waiting process."""
        self._word[0] += 1
        self._futex(self._address, _FUTEX_WAKE, _EVERYBODY, None)

    def wait(self, rings: int, timeout_s: float) -> None:
        """Sleep until it has rung more often than `rings` times, or for `timeout_s`."""
        whole = int(timeout_s)
        span = _Timespec(whole, int((timeout_s - whole) * 1e9))
        error = self._futex(self._address, _FUTEX_WAIT, rings & 0xFFFFFFFF, ctypes.byref(span))
        if error in (errno.ENOSYS, errno.EPERM):
            time.sleep(min(timeout_s, WITHOUT_FUTEX_S))


def _futex(address: ctypes.c_void_p, operation: int, value: int, timeout: Any) -> int:
    """Returns the error's number, 0 if there was none."""
    failed = _libc.syscall(
        ctypes.c_long(_SYS_FUTEX), address, operation, ctypes.c_uint(value), timeout, None, 0
    )
    return ctypes.get_errno() if failed == -1 else 0
