"""Settings as one process read them, for others that must read the same ones however late."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from card.settings.whole import Settings, section_of


def freeze(settings: Settings, file: Path) -> None:
    """Write them to `file`, complete and with every path absolute."""
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What is left of an environment without the variables that would win over such a file."""
    return {
        name: value
        for name, value in environment.items()
        if section_of(name) not in Settings.model_fields
    }
