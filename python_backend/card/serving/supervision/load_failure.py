"""A model that cannot be loaded says why, in the log and to the supervisor.

Triton would tell once all the others are loaded, among much else, or abort over it and tell nobody.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from card.cache import PoolError
from card.engines import EngineError
from card.serving.supervision.notices import Notices
from card.settings import SettingsError

LOAD_ERRORS = (EngineError, PoolError, SettingsError)
"""What a model raises when it cannot be loaded; the message says what to change."""

log = logging.getLogger(__name__)
Model = TypeVar("Model")


def announced(
    initialize: Callable[[Model, dict[str, str]], None],
) -> Callable[[Model, dict[str, str]], None]:
    """Tell why `initialize` fails, and fail."""

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
