"""Notices among the processes of one service, outside of requests.

Each notice is a file in a directory of the supervisor. The supervisor announces that the service
drains, `card` that its queue is full, and a model the phase of its load and why it cannot be
loaded. A model reads the first two before it works on a request, so that a refusal is cheap on a
busy machine. `card` still decides about its queue, because the notice may be slightly old.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from card.cache import ENGINES, PoolError
from card.engines import EngineError
from card.serving.requests.refusal import Refusal
from card.settings import SettingsError

NOTICES_VARIABLE = "CARD_NOTICES"
"""Names the directory in the environment of the server and its models."""
LOAD_ERRORS = (EngineError, PoolError, SettingsError)
"""Errors of a model that cannot be loaded; the message says what to change."""

log = logging.getLogger(__name__)
Model = TypeVar("Model")


class Notice:
    """A file with a text; its existence alone may be the notice. Without a directory it never
    exists."""

    def __init__(self, directory: Path | None, name: str) -> None:
        self._path = None if directory is None else directory / name

    @property
    def stands(self) -> bool:
        return self._path is not None and os.path.exists(self._path)

    @property
    def text(self) -> str:
        """The notice's text; empty if the file does not exist."""
        try:
            return "" if self._path is None else self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def post(self, text: str = "") -> None:
        if self._path is not None:
            self._path.write_text(text, encoding="utf-8")

    def withdraw(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class LoadNotice:
    """The phase of a model's load; a target may load further while it serves."""

    def __init__(self, directory: Path | None, model: str) -> None:
        self._notice = Notice(directory, f"loading_{model}")

    def post(self, phase: str) -> None:
        """Post that a phase begins; an empty name: no phase is under way."""
        self._notice.post(f"{time.monotonic_ns()} {phase}" if phase else "")

    @property
    def phase(self) -> tuple[str, float] | None:
        """Name of the present phase, and its seconds so far; None: there is none."""
        began_ns, _, phase = self._notice.text.partition(" ")
        return (phase, (time.monotonic_ns() - int(began_ns)) / 1e9) if phase else None


class Notices:
    """The notices of one service."""

    def __init__(self, directory: Path | None) -> None:
        self.draining = Notice(directory, "draining")
        self.queue_full = Notice(directory, "queue_full")
        self.load_failed = Notice(directory, "load_failed")
        self.loading = {engine: LoadNotice(directory, engine) for engine in ENGINES}

    @classmethod
    def of_this_service(cls) -> Notices:
        """The notices of this process's supervisor; without a supervisor there are none."""
        named = os.environ.get(NOTICES_VARIABLE)
        return cls(Path(named) if named else None)

    def check_draining(self) -> None:
        """Raises `Refusal` while the service ends."""
        if self.draining.stands:
            raise Refusal(
                "UNAVAILABLE",
                "the service is draining: it finishes what it has begun and then stops; "
                "send this request to another one, or again later",
                reason="draining",
            )


def announced(
    initialize: Callable[[Model, dict[str, str]], None],
) -> Callable[[Model, dict[str, str]], None]:
    """Log why `initialize` fails and tell the supervisor, which Triton would not do."""

    @functools.wraps(initialize)
    def initialize_or_say(model: Model, args: dict[str, str]) -> Any:
        try:
            initialize(model, args)
        except LOAD_ERRORS as error:
            why = f"{args.get('model_name')} cannot be loaded: {error}"
            log.critical("%s", why)
            Notices.of_this_service().load_failed.post(why)
            raise

    return initialize_or_say
