"""The manifests agree with one another, with the settings they mount, and with the code."""

from __future__ import annotations

import re
import subprocess
from http import HTTPStatus
from pathlib import Path

import pytest
import typer
import yaml
from debian_package import prometheus_programs
from manifests import (
    APART,
    GATEWAY,
    KUBERNETES,
    MODELS,
    OVERLAYS,
    Manifest,
    container_of,
    devices_of,
    of_kind,
    pod_of,
    rendered,
    settings_of,
    spec_of,
    volume_at,
)
from needs import in_bytes, shared_memory_bytes, stop_s
from tritonclient.grpc import service_pb2

from card.serving.metrics.exporter import FAMILIES
from card.serving.supervision.health import HealthServer
from card.settings import Settings
from card_guard.command import app as guard


@pytest.mark.parametrize("name", [*OVERLAYS, GATEWAY])
def test_every_selector_finds_its_own_pods_alone(name: str) -> None:
    manifests = rendered(name)
    (spread,) = pod_of(manifests)["spec"]["topologySpreadConstraints"]
    selectors = [
        spec_of(manifests, "Deployment")["selector"]["matchLabels"],
        spec_of(manifests, "PodDisruptionBudget")["selector"]["matchLabels"],
        spec_of(manifests, "NetworkPolicy")["podSelector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        *(one["spec"]["selector"]["matchLabels"] for one in of_kind(manifests, "PodMonitor")),
        *(service["spec"]["selector"] for service in of_kind(manifests, "Service")),
    ]
    own = pod_of(manifests)["metadata"]["labels"]
    others = [
        pod_of(rendered("cpu" if name == GATEWAY else GATEWAY))["metadata"]["labels"],
        pod_of(rendered(MODELS), "Job")["metadata"]["labels"],
    ]
    for selector in selectors:
        assert selector.items() <= own.items()
        assert not any(selector.items() <= labels.items() for labels in others)


def test_clients_meet_the_guard_alone(settings: Settings) -> None:
    serving = settings.serving
    assert serving.guard
    assert not serving.http_inference
    parser = typer.main.get_command(guard)
    options = parser.make_context("card-guard", list(serving.guard_arguments)).params
    assert options["connection_s"] == 600, "open connections move to new pods"
    assert options["message_bytes"] > 2 * settings.limits.prompt_bytes


def test_ports_are_those_of_the_settings_wherever_they_are_named(
    manifests: list[Manifest], settings: Settings
) -> None:
    container, policy = container_of(manifests), spec_of(manifests, "NetworkPolicy")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    serving = settings.serving
    assert ports == {name.removesuffix("_port"): port for name, port in serving.ports.items()}
    assert serving.address == "0.0.0.0"
    used = {
        *(end["port"] for end in spec_of(manifests, "PodMonitor")["podMetricsEndpoints"]),
        *(port["port"] for rule in policy["ingress"] for port in rule["ports"]),
    }
    assert used == set(ports) - {"http"}, "Triton's own HTTP is closed (SECURITY.md)"
    for service in of_kind(manifests, "Service"):
        for port in service["spec"]["ports"]:
            assert (port["targetPort"], port["port"]) == (port["name"], ports[port["name"]])


def test_probes_ask_the_health_port_what_it_answers(manifests: list[Manifest]) -> None:
    container = container_of(manifests)
    health = HealthServer("127.0.0.1", 0)
    try:
        for probe, path in (("startup", "/ready"), ("readiness", "/ready"), ("liveness", "/live")):
            get = container[f"{probe}Probe"]["httpGet"]
            assert (get["path"], get["port"]) == (path, "health")
            assert health.answer(path)[0] is not HTTPStatus.NOT_FOUND
    finally:
        health.close()


def test_route_leads_to_grpc_and_admits_no_call_that_controls(manifests: list[Manifest]) -> None:
    (rule,) = spec_of(manifests, "GRPCRoute")["rules"]
    (backend,) = rule["backendRefs"]
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(manifests, "Service")}
    ports = {port["port"]: port["name"] for port in services[backend["name"]]["ports"]}
    assert ports[backend["port"]] == "grpc"
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    methods = {match["method"]["method"] for match in rule["matches"]}
    assert {match["method"]["service"] for match in rule["matches"]} == {service.full_name}
    assert {"ModelStreamInfer"} <= methods <= set(service.methods_by_name)
    assert not [name for name in methods if re.search("Repository|SharedMemory|Trace|Log", name)]


def test_pod_may_start_and_drain_as_long_as_its_settings_say(
    manifests: list[Manifest], settings: Settings
) -> None:
    probe = container_of(manifests)["startupProbe"]
    limit_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert limit_s > settings.serving.load_timeout_s
    assert spec_of(manifests, "Deployment")["progressDeadlineSeconds"] > limit_s
    _, before_s = container_of(manifests)["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = int(before_s) + stop_s(settings)
    grace_s = pod_of(manifests)["spec"]["terminationGracePeriodSeconds"]
    assert needed_s <= grace_s <= 2 * needed_s


def test_shared_memory_holds_the_cache_within_the_containers_memory(
    manifests: list[Manifest], settings: Settings
) -> None:
    directory = volume_at(manifests, str(settings.cache.directory))["emptyDir"]
    assert directory["medium"] == "Memory"
    size = in_bytes(directory["sizeLimit"])
    assert size >= shared_memory_bytes(settings)
    assert in_bytes(container_of(manifests)["resources"]["limits"]["memory"]) > 2 * size


@pytest.mark.parametrize("name", [one for one in OVERLAYS if one != "cpu"])
def test_models_are_downloaded_where_the_settings_look(name: str, tmp_path: Path) -> None:
    manifests = rendered(name)
    settings = settings_of(manifests, tmp_path)
    volume = volume_at(manifests, "/models")
    (claim,) = of_kind(rendered(MODELS), "PersistentVolumeClaim")
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert volume["readOnly"]
    commands = [one["command"] for one in pod_of(rendered(MODELS), "Job")["spec"]["containers"]]
    loaded = re.findall(r"--local-dir (\S+)", " ".join(word for line in commands for word in line))
    assert set(loaded) == {str(settings.target.path), str(settings.draft.path)}


def test_pod_has_as_many_gpus_as_its_settings_name(
    manifests: list[Manifest], settings: Settings
) -> None:
    resources = container_of(manifests)["resources"]
    assert resources["requests"] == resources["limits"]
    count = int(resources["limits"].get("nvidia.com/gpu", 0))
    assert devices_of(settings) == set(range(count))


@pytest.mark.parametrize("name", [*OVERLAYS, *APART])
def test_every_container_is_confined(name: str) -> None:
    spec = pod_of(rendered(name), "Job" if name == MODELS else "Deployment")["spec"]
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    # Variables of services look like settings.
    assert name == MODELS or spec["enableServiceLinks"] is False
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}


def test_pod_reaches_no_other_host(manifests: list[Manifest]) -> None:
    policy = spec_of(manifests, "NetworkPolicy")
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert policy.get("egress", []) == []
    assert all(rule["from"] for rule in policy["ingress"])


def test_autoscaler_asks_the_adapter_for_figures_that_the_code_exports(
    manifests: list[Manifest],
) -> None:
    scaler, (deployment,) = (
        spec_of(manifests, "HorizontalPodAutoscaler"),
        of_kind(manifests, "Deployment"),
    )
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    file = KUBERNETES / "prometheus-adapter/values.yaml"
    rules = yaml.safe_load(file.read_text(encoding="utf-8"))["rules"]["custom"]
    asked = {metric["pods"]["metric"]["name"] for metric in scaler["metrics"]}
    assert asked == {rule["name"]["as"] for rule in rules}
    exported = {
        f"{family.name}{suffix}"
        for family in FAMILIES
        for suffix in (("_sum", "_count") if family.kind == "histogram" else ("",))
    }
    for rule in rules:
        read = re.findall(r"(card_\w+)\{", rule["metricsQuery"])
        assert rule["seriesQuery"].partition("{")[0] in read
        assert set(read) <= exported
        assert rule["metricsQuery"].count("{<<.LabelMatchers>>}") == len(read)


@pytest.mark.parametrize(
    ("queued", "first_token_s", "wait_s"),
    [(0, 0.5, 0.5), (8, 0.5, 5.0), (0, None, 0.0)],
    ids=["served", "queueing", "idle"],
)
def test_autoscaler_sees_the_wait_of_a_new_request(
    queued: int, first_token_s: float | None, wait_s: float, tmp_path: Path
) -> None:
    """Sixteen slots, one request a second, each of ten seconds."""
    file = KUBERNETES / "prometheus-adapter/values.yaml"
    (rule,) = yaml.safe_load(file.read_text(encoding="utf-8"))["rules"]["custom"]
    query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
    pod = 'namespace="card",pod="a"'
    series = {"card_queued_requests": f"{queued}+0x9", "card_slots": "16+0x9"}
    if first_token_s is not None:
        for name, each_s in (
            ("card_time_to_first_token_seconds", first_token_s),
            ("card_request_duration_seconds", 10.0),
        ):
            series |= {f"{name}_sum": f"0+{each_s * 60:g}x9", f"{name}_count": "0+60x9"}
    case = {
        "interval": "1m",
        "input_series": [
            {"series": f"{name}{{{pod}}}", "values": values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": query.replace("<<.LabelMatchers>>", pod),
                "eval_time": "9m",
                "exp_samples": [{"labels": '{pod="a"}', "value": wait_s}],
            }
        ],
    }
    tests = tmp_path / "tests.yaml"
    tests.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}), encoding="utf-8")
    answer = subprocess.run(
        [prometheus_programs() / "promtool", "test", "rules", tests],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
