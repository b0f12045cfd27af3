"""The Kubernetes manifests as `kubectl kustomize` renders them, and ways to find things in them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import program

from card.settings import REPOSITORY_ROOT, Settings, load_settings

KUBERNETES = REPOSITORY_ROOT / "deploy/kubernetes"
OVERLAYS = ("cpu", "gpu-2", "gpu-tp")
MODELS = "models"
GATEWAY = "gateway"
GATEWAY_CPU = "gateway-cpu"
APART = (MODELS, GATEWAY, GATEWAY_CPU)
"""What stands beside the overlays."""

Manifest = dict[str, Any]

_BYTES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def folder(name: str) -> Path:
    """The kustomization of an overlay, or of what stands beside them."""
    return KUBERNETES / name if name in APART else KUBERNETES / "overlays" / name


@functools.cache
def _rendered_text(name: str) -> str:
    kubectl = program("kubectl", "kubernetes-client")
    answer = subprocess.run(
        [kubectl, "kustomize", str(folder(name))], capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        pytest.fail(f"kubectl kustomize {folder(name)}: {answer.stderr}", pytrace=False)
    return answer.stdout


def rendered(name: str) -> list[Manifest]:
    """All manifests of an overlay or of one of `APART`; skips the test without kubectl."""
    return [manifest for manifest in yaml.safe_load_all(_rendered_text(name)) if manifest]


def of_kind(manifests: Iterable[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def only(manifests: Iterable[Manifest], kind: str) -> Manifest:
    """The one manifest of its kind."""
    (manifest,) = of_kind(manifests, kind)
    return manifest


def name_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def pod_of(manifests: Iterable[Manifest]) -> Manifest:
    """The Deployment's pod template: metadata and spec."""
    template: Manifest = only(manifests, "Deployment")["spec"]["template"]
    return template


def container_of(manifests: Iterable[Manifest]) -> Manifest:
    """The Deployment's only container."""
    (container,) = pod_of(manifests)["spec"]["containers"]
    return dict(container)


def settings_of(manifests: Iterable[Manifest], folder: Path) -> Settings:
    """The settings that the ConfigMap mounts, read by the class that reads them in the pod."""
    (text,) = only(manifests, "ConfigMap")["data"].values()
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def volume(manifests: Iterable[Manifest], mount_path: str) -> Mapping[str, Any]:
    """The volume that the container sees at `mount_path`."""
    manifests = list(manifests)
    (name,) = [
        mount["name"]
        for mount in container_of(manifests)["volumeMounts"]
        if mount["mountPath"] == mount_path
    ]
    (found,) = [v for v in pod_of(manifests)["spec"]["volumes"] if v["name"] == name]
    return dict(found)


def in_bytes(quantity: str) -> int:
    """A Kubernetes quantity with a binary unit, such as 256Mi."""
    return int(quantity[:-2]) * _BYTES[quantity[-2:]]


def devices_of(settings: Settings) -> set[int]:
    """The CUDA devices that the settings name, counted from 0."""
    devices: set[int] = set()
    for model in (settings.target, settings.draft):
        if settings.engine_of(model) == "tensorrt_llm":
            devices |= set(model.tensorrt_llm.devices)
        elif model.device != "cpu":
            devices.add(int(model.device.partition(":")[2] or 0))
    return devices
