"""The phases of a load: each is logged with its seconds and reported to a watcher."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

log = logging.getLogger(__name__)

_watcher: ContextVar[Callable[[str], object]] = ContextVar("watcher", default=lambda name: None)
_lasting: ContextVar[str] = ContextVar("lasting", default="")


@contextlib.contextmanager
def watched_by(tell: Callable[[str], object]) -> Iterator[None]:
    """Call `tell` with the name of each phase as it begins. When a phase ends, call `tell` with the
    name of the phase around it, or an empty name."""
    token = _watcher.set(tell)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextlib.contextmanager
def phase(name: str, subject: object) -> Iterator[None]:
    """A part of the load of `subject`, as in ``with phase("compile", path)``."""
    tell, around = _watcher.get(), _lasting.get()
    token = _lasting.set(name)
    tell(name)
    began_s = time.monotonic()
    try:
        yield
    finally:
        _lasting.reset(token)
        tell(around)
    log.info("%s: %s took %.1f s", subject, name, time.monotonic() - began_s)
