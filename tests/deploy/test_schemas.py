"""Deployment files are valid to the programs that read them: schemas, Compose, promtool."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml
from compose_file import FILE, compose
from debian_package import prometheus_programs
from manifests import APART, OVERLAYS, Manifest, folder, rendered

from card.settings import REPOSITORY_ROOT, Settings, load_settings
from card_guard.command import app as guard

KUBERNETES_VERSIONS = ("1.27.0", "1.37.0")
"""The oldest and the newest that we validate against."""
SCHEMAS = Path(__file__).parent / "schemas"
CUSTOM_KINDS = {"PodMonitor": "podmonitor.json", "GRPCRoute": "grpcroute.json"}
PAGES = ("docs/settings.md", "SECURITY.md", "docs/deploy.md", "docs/gpu.md", "docs/operations.md")


def _closed(schema: Any) -> Any:
    """The schema with unknown fields refused, which an API server would drop silently."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


@functools.cache
def _custom_schema(kind: str) -> dict[str, Any]:
    return dict(_closed(json.loads((SCHEMAS / CUSTOM_KINDS[kind]).read_text(encoding="utf-8"))))


def _validate(manifest: Manifest, version: str) -> None:
    if manifest["kind"] in CUSTOM_KINDS:
        jsonschema.validate(manifest, _custom_schema(manifest["kind"]))
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", [*OVERLAYS, *APART])
def test_manifests_are_valid_in_one_namespace(name: str, version: str) -> None:
    manifests = rendered(name)
    by_hand = folder(name) / "copy.yaml"
    further = [yaml.safe_load(by_hand.read_text(encoding="utf-8"))] if by_hand.exists() else []
    for manifest in [*manifests, *further]:
        _validate(manifest, version)
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"card"}


def _blocks(page: str) -> list[dict[str, Any]]:
    """The YAML that a page shows."""
    text = (REPOSITORY_ROOT / page).read_text(encoding="utf-8")
    found = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    return [block for block in found if isinstance(block, dict)]


@pytest.mark.parametrize("page", PAGES)
def test_settings_on_a_page_are_valid(page: str, tmp_path: Path) -> None:
    for shown in _blocks(page):
        if shown.keys() <= Settings.model_fields.keys():
            if shown.get("serving", {}).get("guard_arguments"):
                shown["serving"]["guard"] = True
            (tmp_path / "settings.yaml").write_text(yaml.safe_dump(shown), encoding="utf-8")
            arguments = load_settings(tmp_path / "settings.yaml").serving.guard_arguments
            typer.main.get_command(guard).make_context("card-guard", list(arguments))


def test_compose_takes_the_override_of_the_page(tmp_path: Path) -> None:
    (override,) = [block for block in _blocks("docs/deploy.md") if "services" in block]
    file, beside = tmp_path / FILE.name, tmp_path / "docker-compose.override.yml"
    file.write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    beside.write_text(yaml.safe_dump(override), encoding="utf-8")
    merged = compose(file, ("cpu", "openai"), overridden_by=beside)
    assert merged.keys() == compose(file, ("cpu", "openai")).keys()


@pytest.mark.parametrize("page", [None, "docs/operations.md"])
def test_prometheus_configuration_is_valid(page: str | None, tmp_path: Path) -> None:
    """As shipped, and with the Alertmanager that the page shows."""
    deployed = REPOSITORY_ROOT / "deploy/prometheus"
    text = (deployed / "prometheus.yml").read_text(encoding="utf-8")
    content = yaml.safe_load(text.replace("/etc/prometheus", str(deployed)))
    for block in _blocks(page) if page else ():
        content |= block if "alerting" in block else {}
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    answer = subprocess.run(
        [prometheus_programs() / "promtool", "check", "config", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert re.search(r"SUCCESS: \d+ rules found", answer.stdout)
