"""A model that cannot be loaded says so itself: a server that aborts over it tells nobody."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from card.cache import PoolError
from card.engines import EngineError
from card.settings import SettingsError

LOAD_ERRORS = (EngineError, PoolError, SettingsError)
"""What a model raises when it cannot be loaded; the message says what to change."""

log = logging.getLogger(__name__)
Model = TypeVar("Model")


def announced(
    initialize: Callable[[Model, dict[str, str]], None],
) -> Callable[[Model, dict[str, str]], None]:
    """Log why `initialize` fails, and fail."""

    @functools.wraps(initialize)
    def initialize_or_say(model: Model, args: dict[str, str]) -> Any:
        try:
            initialize(model, args)
        except LOAD_ERRORS as error:
            log.critical("%s cannot be loaded: %s", args.get("model_name"), error)
            raise

    return initialize_or_say
