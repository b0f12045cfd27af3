"""Checks of tensors' values; each returns the allowed values if it finds another one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from card.constraints import GUIDE_TYPES
from card.settings import LimitSettings

_SECRET = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Bounds:
    """The settings and the number of token ids, on which the allowed values depend."""

    limits: LimitSettings
    vocabulary: int


Check = Callable[[Any, Bounds], str | None]
"""Returns None for an allowed value, else a text that names the allowed values."""


def bounded_text(value: str, bounds: Bounds) -> str | None:
    most = bounds.limits.prompt_bytes
    if value and len(value.encode()) <= most:
        return None
    return f"text of at least one character and at most {most} bytes (limits.prompt_bytes)"


def token_ids_or_none(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    if all(0 <= token < bounds.vocabulary for token in ids):
        return None
    return f"token ids, each 0 to {bounds.vocabulary - 1}"


def biases(values: tuple[float, ...], _: Bounds) -> str | None:
    # NaN fails this comparison.
    return None if all(-100.0 <= value <= 100.0 for value in values) else "between -100.0 and 100.0"


def only_false(value: bool, _: Bounds) -> str | None:
    """Refuse a feature that is not offered."""
    return "false: it is not offered" if value else None


def only_one(value: int, _: Bounds) -> str | None:
    return None if value == 1 else "1; for several texts send a request each, with its own seed"


def between(low: float, high: float) -> Check:
    """Allow finite numbers from `low` to `high`, not NaN."""

    def check(value: float, _: Bounds) -> str | None:
        if low <= value <= high and math.isfinite(value):
            return None
        return f"between {low} and {high}" if math.isfinite(high) else f"a number, {low} or more"

    return check


def whole_number(low: int, limit: str) -> Check:
    """Allow whole numbers from `low` to the setting `limit` of `limits`."""

    def check(value: int, bounds: Bounds) -> str | None:
        most = getattr(bounds.limits, limit)
        return None if low <= value <= most else f"between {low} and {most} (limits.{limit})"

    return check


def short(limit: str) -> Check:
    """Allow at most as many bytes as the setting `limit` of `limits`."""

    def check(value: str, bounds: Bounds) -> str | None:
        most = getattr(bounds.limits, limit)
        return None if len(value.encode()) <= most else f"at most {most} bytes (limits.{limit})"

    return check


def token_or_none(value: int, bounds: Bounds) -> str | None:
    known = -1 <= value < bounds.vocabulary
    return None if known else f"a token id, 0 to {bounds.vocabulary - 1}, or -1 for none"


def short_words(words: tuple[str, ...], bounds: Bounds) -> str | None:
    most = bounds.limits.word_bytes
    if all(len(word.encode()) <= most for word in words):
        return None
    return f"words of at most {most} bytes each (limits.word_bytes)"


def one_of(keys: Collection[str]) -> Check:
    def check(value: str, _: Bounds) -> str | None:
        return None if value in keys else f"one of {', '.join(keys)}"

    return check


def secret(value: str, _: Bounds) -> str | None:
    return None if _SECRET.fullmatch(value) else "32 hexadecimal digits, drawn at random"


def known_guide_type(value: str, _: Bounds) -> str | None:
    return None if value in ("", *GUIDE_TYPES) else f"one of {', '.join(GUIDE_TYPES)}"


def token_ids(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    if ids and min(ids) >= 0 and max(ids) < bounds.vocabulary:
        return None
    return f"one or more token ids, each 0 to {bounds.vocabulary - 1}"
