"""Fixtures of the deployment tests: an overlay's manifests and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifests import OVERLAYS, Manifest, rendered, settings_of

from card.settings import Settings


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return rendered(str(request.param))


@pytest.fixture
def settings(manifests: list[Manifest], tmp_path: Path) -> Settings:
    return settings_of(manifests, tmp_path)
