"""Fixtures of the deployment tests: an overlay's manifests and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from rendered_manifests import OVERLAYS, Manifest, rendered, settings_of

from card.settings import Settings


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manifests(overlay: str) -> list[Manifest]:
    return rendered(overlay)


@pytest.fixture
def settings(manifests: list[Manifest], tmp_path: Path) -> Settings:
    """What the overlay's ConfigMap says."""
    return settings_of(manifests, tmp_path)
