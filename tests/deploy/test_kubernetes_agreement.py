"""The manifests agree with one another, with the settings they mount, and with the code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from dockerfile import models_of_the_cpu_image
from rendered_manifests import (
    APART,
    GATEWAY,
    KUBERNETES,
    MODELS,
    OVERLAYS,
    Manifest,
    container_of,
    devices_of,
    in_bytes,
    name_of,
    of_kind,
    only,
    pod_of,
    rendered,
    settings_of,
    volume,
)
from tritonclient.grpc import service_pb2

from card.cache.pool import pool_bytes
from card.serving.geometry import pool_geometry
from card.serving.metrics.families import FAMILIES
from card.serving.supervision.health import HealthServer
from card.serving.supervision.policy import STUBS
from card.serving.supervision.supervisor import LINGER_S
from card.serving.supervision.triton_server import MINIMUM_REGION_BYTES
from card.settings import Settings
from card_guard.command import app as guard

KILL_S = 10.0
"""How long the supervisor may take to end processes that do not answer (`stubs.kill`)."""

GPU = "nvidia.com/gpu"


def _adapter_values() -> dict[str, Any]:
    file = KUBERNETES / "prometheus-adapter/values.yaml"
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def _adapter_rules() -> list[dict[str, Any]]:
    return list(_adapter_values()["rules"]["custom"])


def _port_names(manifests: list[Manifest]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container_of(manifests)["ports"]}


# --- who is selected -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OVERLAYS, GATEWAY])
def test_every_selector_finds_its_own_pods_and_no_others(name: str) -> None:
    manifests = rendered(name)
    (spread,) = pod_of(manifests)["spec"]["topologySpreadConstraints"]
    selectors = [
        only(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
        only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        *(one["spec"]["selector"]["matchLabels"] for one in of_kind(manifests, "PodMonitor")),
        *(service["spec"]["selector"] for service in of_kind(manifests, "Service")),
    ]
    others = [
        pod_of(rendered("cpu" if name == GATEWAY else GATEWAY))["metadata"]["labels"],
        only(rendered(MODELS), "Job")["spec"]["template"]["metadata"]["labels"],
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= pod_of(manifests)["metadata"]["labels"].items()
        assert not any(selector.items() <= labels.items() for labels in others)


def test_clients_meet_the_guard_alone(manifests: list[Manifest], settings: Settings) -> None:
    serving = settings.serving
    assert serving.guard
    assert not serving.http_inference
    options = _guards_options(serving.guard_arguments)
    assert options["connection_s"] == 600, "open connections find new pods"
    assert options["message_bytes"] > 2 * settings.limits.prompt_bytes


def _guards_options(arguments: Sequence[str]) -> dict[str, Any]:
    parser = typer.main.get_command(guard)
    return dict(parser.make_context("card-guard", list(arguments)).params)


# --- ports and paths -----------------------------------------------------------------------------


def test_the_container_listens_on_the_ports_of_its_settings(
    manifests: list[Manifest], settings: Settings
) -> None:
    expected = {name.removesuffix("_port"): port for name, port in settings.serving.ports.items()}
    assert _port_names(manifests) == expected
    assert settings.serving.address == "0.0.0.0"


def test_every_port_that_is_named_exists(manifests: list[Manifest]) -> None:
    ports = _port_names(manifests)
    container = container_of(manifests)
    policy = only(manifests, "NetworkPolicy")["spec"]
    used = {
        *(container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness")),
        container["livenessProbe"]["httpGet"]["port"],
        *(end["port"] for end in only(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]),
        *(port["port"] for rule in policy["ingress"] for port in rule["ports"]),
    }
    assert used == set(ports) - {"http"}, "Triton's own HTTP is for nobody (SECURITY.md)"
    for service in of_kind(manifests, "Service"):
        for port in service["spec"]["ports"]:
            assert port["targetPort"] == port["name"]
            assert port["port"] == ports[port["name"]]


def test_the_probes_ask_what_the_supervisor_answers(manifests: list[Manifest]) -> None:
    container = container_of(manifests)
    health = HealthServer("127.0.0.1", 0)
    try:
        for probe, path in (("startup", "/ready"), ("readiness", "/ready"), ("liveness", "/live")):
            get = container[f"{probe}Probe"]["httpGet"]
            assert (get["path"], get["port"]) == (path, "health")
            assert health.answer(path)[0] is not HTTPStatus.NOT_FOUND
    finally:
        health.close()


def test_the_route_leads_to_the_service_and_admits_no_call_that_controls(
    manifests: list[Manifest],
) -> None:
    services = {name_of(one): one["spec"] for one in of_kind(manifests, "Service")}
    (rule,) = only(manifests, "GRPCRoute")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    ports = {port["port"]: port["name"] for port in services[backend["name"]]["ports"]}
    assert ports[backend["port"]] == "grpc"
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    methods = {match["method"]["method"] for match in rule["matches"]}
    assert {match["method"]["service"] for match in rule["matches"]} == {service.full_name}
    assert "ModelStreamInfer" in methods
    assert methods <= set(service.methods_by_name)
    assert not [name for name in methods if re.search("Repository|SharedMemory|Trace|Log", name)]


# --- time ----------------------------------------------------------------------------------------


def test_a_pod_may_take_as_long_to_start_as_its_settings_allow(
    manifests: list[Manifest], settings: Settings
) -> None:
    probe = container_of(manifests)["startupProbe"]
    limit_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert limit_s > settings.serving.load_timeout_s
    assert only(manifests, "Deployment")["spec"]["progressDeadlineSeconds"] > limit_s


def test_a_pod_may_drain_as_long_as_its_settings_say(
    manifests: list[Manifest], settings: Settings
) -> None:
    command, seconds = container_of(manifests)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    needed_s = int(seconds) + settings.serving.drain_s + LINGER_S + KILL_S
    grace_s = pod_of(manifests)["spec"]["terminationGracePeriodSeconds"]
    assert needed_s <= grace_s <= 2 * needed_s


# --- memory, files, devices ----------------------------------------------------------------------


def test_shared_memory_is_a_memory_volume_that_holds_the_cache(
    manifests: list[Manifest], settings: Settings
) -> None:
    directory = volume(manifests, str(settings.cache.directory))["emptyDir"]
    assert directory["medium"] == "Memory"
    size = in_bytes(directory["sizeLimit"])
    assert size >= 2 * pool_bytes(pool_geometry(settings)) + 8 * len(STUBS) * MINIMUM_REGION_BYTES
    # A memory volume counts as memory of the container.
    assert in_bytes(container_of(manifests)["resources"]["limits"]["memory"]) > 2 * size


def test_every_volume_is_mounted_once_and_every_mount_has_one(manifests: list[Manifest]) -> None:
    job = only(rendered(MODELS), "Job")["spec"]["template"]
    for template in (pod_of(manifests), job, pod_of(rendered(GATEWAY))):
        volumes = sorted(volume["name"] for volume in template["spec"]["volumes"])
        for container in template["spec"]["containers"]:
            mounts = container["volumeMounts"]
            assert sorted(mount["name"] for mount in mounts) == volumes
            assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@pytest.mark.parametrize("overlay", ["gpu-2", "gpu-tp"], indirect=True)
def test_the_models_are_where_the_settings_look_and_cannot_be_written(
    manifests: list[Manifest], settings: Settings
) -> None:
    claim = volume(manifests, "/models")["persistentVolumeClaim"]
    assert claim["claimName"] == name_of(only(rendered(MODELS), "PersistentVolumeClaim"))
    assert claim["readOnly"]
    (mount,) = [m for m in container_of(manifests)["volumeMounts"] if m["mountPath"] == "/models"]
    assert mount["readOnly"]
    loaded = {
        re.search(r"--local-dir (\S+)", " ".join(container["command"])).group(1)  # type: ignore[union-attr]
        for container in only(rendered(MODELS), "Job")["spec"]["template"]["spec"]["containers"]
    }
    assert loaded == {str(settings.target.path), str(settings.draft.path)}


def test_on_processors_the_pair_of_the_image_is_served(tmp_path: Path) -> None:
    manifests = rendered("cpu")
    mounted = {Path(mount["mountPath"]) for mount in container_of(manifests)["volumeMounts"]}
    settings = settings_of(manifests, tmp_path)
    for model in (settings.target, settings.draft):
        assert model.path.is_relative_to(models_of_the_cpu_image())
        assert not mounted & {model.path, *model.path.parents}
    claimed = [
        one for one in pod_of(manifests)["spec"]["volumes"] if "persistentVolumeClaim" in one
    ]
    assert not claimed, "it would wait for a volume that nobody made"


def test_the_pod_gets_as_many_gpus_as_its_settings_name(
    manifests: list[Manifest], settings: Settings
) -> None:
    devices = devices_of(settings)
    resources = container_of(manifests)["resources"]
    assert resources["requests"] == resources["limits"]
    assert int(resources["limits"].get(GPU, 0)) == len(devices)
    assert devices == set(range(len(devices)))


# --- confinement ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OVERLAYS, *APART])
def test_every_container_is_confined(name: str) -> None:
    kind = "Job" if name == MODELS else "Deployment"
    spec = only(rendered(name), kind)["spec"]["template"]["spec"]
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    # Variables of services could be taken for settings or options.
    assert name == MODELS or spec["enableServiceLinks"] is False
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}
    for container in spec["containers"]:
        writable = {
            mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
        }
        assert "/tmp" in writable


def test_a_pod_reaches_nobody(manifests: list[Manifest]) -> None:
    policy = only(manifests, "NetworkPolicy")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert policy.get("egress", []) == []
    assert all(rule["from"] for rule in policy["ingress"])


# --- scaling -------------------------------------------------------------------------------------


def test_the_autoscaler_scales_the_deployment_and_nobody_else_does(
    manifests: list[Manifest],
) -> None:
    target = only(manifests, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    deployment = only(manifests, "Deployment")
    assert (target["apiVersion"], target["kind"], target["name"]) == (
        deployment["apiVersion"],
        deployment["kind"],
        name_of(deployment),
    )
    assert "replicas" not in deployment["spec"]


def test_the_autoscaler_asks_for_what_the_adapter_offers(manifests: list[Manifest]) -> None:
    asked = {
        metric["pods"]["metric"]["name"]
        for metric in only(manifests, "HorizontalPodAutoscaler")["spec"]["metrics"]
    }
    assert asked == {rule["name"]["as"] for rule in _adapter_rules()}


def test_the_adapter_reads_gauges_that_the_code_exports() -> None:
    gauges = {family.name for family in FAMILIES if family.kind == "gauge" and not family.labels}
    for rule in _adapter_rules():
        series = rule["seriesQuery"].partition("{")[0]
        assert re.fullmatch(rule["name"]["matches"], series)
        read = set(re.findall(r"card_\w+", rule["metricsQuery"]))
        assert series in read
        assert read <= gauges
        assert rule["metricsQuery"].count("<<.LabelMatchers>>") == len(read)
        # Every pod on its own: the autoscaler averages.
        assert rule["metricsQuery"].count("by (<<.GroupBy>>)") == len(read)
        assert set(rule["resources"]["overrides"]) == {"namespace", "pod"}
