"""Every rendered manifest against the schema of its kind, unknown fields refused."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from rendered_manifests import APART, KUBERNETES, MODELS, OVERLAYS, Manifest, folder, rendered

KUBERNETES_VERSIONS = ("1.27.0", "1.37.0")
"""The oldest and the newest that we validate against."""

SCHEMAS = Path(__file__).parent / "schemas"
CUSTOM_KINDS = {
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitor.json",
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): "grpcroute.json",
}

KUSTOMIZE_1_20 = {
    "bases",
    "configMapGenerator",
    "images",
    "namespace",
    "patchesStrategicMerge",
    "resources",
}
"""Fields of a kustomization that the kustomize inside kubectl 1.20 and today's both know."""


def _closed(schema: Any) -> Any:
    """The schema with unknown fields refused, which an API server would drop without a word."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if isinstance(closed.get("properties"), dict) and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed


@functools.cache
def _custom_schema(file: str) -> dict[str, Any]:
    return dict(_closed(json.loads((SCHEMAS / file).read_text(encoding="utf-8"))))


def _validate(manifest: Manifest, version: str) -> None:
    """Raises a `ValidationError` that says what is wrong, or `SchemaNotFoundError`."""
    if file := CUSTOM_KINDS.get((manifest["apiVersion"], manifest["kind"])):
        jsonschema.validate(manifest, _custom_schema(file))
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", [*OVERLAYS, *APART])
def test_every_manifest_is_valid(name: str, version: str) -> None:
    manifests = rendered(name)
    assert manifests
    for manifest in manifests:
        _validate(manifest, version)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_pod_for_copies_is_valid(version: str) -> None:
    _validate(yaml.safe_load((folder(MODELS) / "copy.yaml").read_text(encoding="utf-8")), version)


@pytest.mark.parametrize("name", [*OVERLAYS, *APART])
def test_names_are_unique_and_in_one_namespace(name: str) -> None:
    manifests = rendered(name)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(names)) == len(names)
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"card"}


@pytest.mark.parametrize(
    "kustomization",
    sorted(KUBERNETES.rglob("kustomization.yaml")),
    ids=lambda path: path.parent.name,
)
def test_kubectl_1_20_knows_every_field(kustomization: Path) -> None:
    content = yaml.safe_load(kustomization.read_text(encoding="utf-8"))
    assert set(content) <= KUSTOMIZE_1_20
    # Folders are `bases` there; `resources` are files.
    for resource in content.get("resources", ()):
        assert (kustomization.parent / resource).is_file()
    for base in content.get("bases", ()):
        assert (kustomization.parent / base / "kustomization.yaml").is_file()
