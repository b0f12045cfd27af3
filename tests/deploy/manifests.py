"""The Kubernetes manifests as `kubectl kustomize` renders them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import program

from card.settings import REPOSITORY_ROOT, Settings, load_settings

KUBERNETES = REPOSITORY_ROOT / "deploy/kubernetes"
OVERLAYS = ("cpu", "gpu-2", "gpu-tp", "gpu-vllm", "gpu-vllm-tp")
MODELS, GATEWAY, GATEWAY_CPU = "models", "gateway", "gateway-cpu"
APART = (MODELS, GATEWAY, GATEWAY_CPU)
"""Kustomizations beside the overlays."""

Manifest = dict[str, Any]


def folder(name: str) -> Path:
    return KUBERNETES / name if name in APART else KUBERNETES / "overlays" / name


@functools.cache
def _text(name: str) -> str:
    kubectl = program("kubectl", "kubernetes-client")
    answer = subprocess.run(
        [kubectl, "kustomize", str(folder(name))], capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        pytest.fail(f"kubectl kustomize {folder(name)}: {answer.stderr}", pytrace=False)
    return answer.stdout


def rendered(name: str) -> list[Manifest]:
    """All manifests of a kustomization; skips the test without kubectl."""
    return [manifest for manifest in yaml.safe_load_all(_text(name)) if manifest]


def of_kind(manifests: Iterable[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def spec_of(manifests: Iterable[Manifest], kind: str) -> Manifest:
    """The spec of the one manifest of its kind."""
    (manifest,) = of_kind(manifests, kind)
    return dict(manifest["spec"])


def pod_of(manifests: Iterable[Manifest], kind: str = "Deployment") -> Manifest:
    """The pod template: metadata and spec."""
    return dict(spec_of(manifests, kind)["template"])


def container_of(manifests: Iterable[Manifest]) -> Manifest:
    """The Deployment's only container."""
    (container,) = pod_of(manifests)["spec"]["containers"]
    return dict(container)


def volume_at(manifests: list[Manifest], path: str) -> Manifest:
    """The volume that the container mounts at `path`, with the mount's `readOnly`."""
    (mount,) = [m for m in container_of(manifests)["volumeMounts"] if m["mountPath"] == path]
    volumes = {volume["name"]: volume for volume in pod_of(manifests)["spec"]["volumes"]}
    found: Manifest = volumes[mount["name"]] | {"readOnly": mount.get("readOnly", False)}
    return found


def settings_of(manifests: Iterable[Manifest], folder: Path) -> Settings:
    """The settings of the ConfigMap, read as the pod reads them."""
    (configuration,) = of_kind(manifests, "ConfigMap")
    (text,) = configuration["data"].values()
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def devices_of(settings: Settings) -> set[int]:
    """The CUDA devices that the settings name, counted from 0."""
    devices: set[int] = set()
    for model in (settings.target, settings.draft):
        if settings.engine_of(model) == "tensorrt_llm":
            devices |= set(model.tensorrt_llm.devices)
        elif settings.engine_of(model) == "vllm":
            devices |= set(settings.target.vllm.devices)
        elif model.device != "cpu":
            devices.add(int(model.device.partition(":")[2] or 0))
    return devices
