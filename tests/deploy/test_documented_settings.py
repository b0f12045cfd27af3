"""The settings and the configurations that the pages show are ones that can be used."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from compose_file import FILE, compose, mounts
from debian_package import prometheus_programs

from card.settings import REPOSITORY_ROOT, Settings, load_settings
from card_guard.command import app as guard

PAGES = ("docs/settings.md", "SECURITY.md", "docs/deploy.md", "docs/gpu.md", "docs/operations.md")
CERTIFICATES = "/etc/card-tls"
"""Where the page has them mounted in every container."""


def blocks(page: str) -> list[dict[str, Any]]:
    """What a page shows in YAML."""
    text = (REPOSITORY_ROOT / page).read_text(encoding="utf-8")
    found = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    return [block for block in found if isinstance(block, dict)]


SHOWN = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page))
    if block.keys() <= Settings.model_fields.keys()
]


@pytest.mark.parametrize("shown", SHOWN)
def test_settings_on_a_page_are_taken(shown: dict[str, Any], tmp_path: Path) -> None:
    if shown.get("serving", {}).get("guard_arguments"):
        shown = shown | {"serving": {"guard": True} | shown["serving"]}
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(shown), encoding="utf-8")
    arguments = load_settings(file).serving.guard_arguments
    typer.main.get_command(guard).make_context("card-guard", list(arguments))


def test_the_override_that_mounts_certificates_suits_the_compose_file(tmp_path: Path) -> None:
    (override,) = [block for block in blocks("docs/deploy.md") if "services" in block]
    file, beside = tmp_path / FILE.name, tmp_path / "docker-compose.override.yml"
    file.write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    beside.write_text(yaml.safe_dump(override), encoding="utf-8")
    merged = compose(file, ("cpu", "openai"), overridden_by=beside)
    assert mounts(merged["triton-cpu"])[CERTIFICATES] == (tmp_path / "tls", True)
    trusted = f"{CERTIFICATES}/ca.crt"
    assert mounts(merged["gateway"])[trusted] == (tmp_path / "tls/ca.crt", True)
    assert f"--tls-ca={trusted}" in merged["gateway"]["command"]


def test_prometheus_takes_the_alertmanager_of_the_page(tmp_path: Path) -> None:
    (alerting,) = [block for block in blocks("docs/operations.md") if "alerting" in block]
    shipped = (REPOSITORY_ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8")
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(yaml.safe_load(shipped) | alerting), encoding="utf-8")
    answer = subprocess.run(
        [prometheus_programs() / "promtool", "check", "config", "--syntax-only", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
