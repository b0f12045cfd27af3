"""What tests of settings files share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from card.settings import SettingsError, load_settings

Write = Callable[[str], Path]
"""Writes a settings file and returns its path."""


def refusal(file: Path | None = None) -> str:
    """What is said of settings that are refused."""
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    return str(caught.value)
