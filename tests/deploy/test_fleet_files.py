"""The overlay for inference gateways and KServe's resources agree with the code and one another."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from manifests import KUBERNETES, Manifest, of_kind, pod_of, rendered, spec_of

from card.settings import Settings
from card_gateway.command import app as gateway

KSERVE = [
    document
    for file in sorted((KUBERNETES / "kserve").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]
RUNTIMES = of_kind(KSERVE, "ClusterServingRuntime")


@pytest.fixture(scope="module")
def pool() -> list[Manifest]:
    return rendered("inference-gateway")


def containers(spec: Manifest) -> dict[str, Manifest]:
    return {one["name"]: one for one in spec["containers"]}


def options(arguments: list[str]) -> dict[str, Any]:
    return typer.main.get_command(gateway).make_context("card-gateway", list(arguments)).params


def test_pool_holds_the_pods_that_say_which_metrics_they_have(pool: list[Manifest]) -> None:
    spec, pod = spec_of(pool, "InferencePool"), pod_of(pool)
    labels = pod["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels["llm-d.ai/engine-type"] == "triton-tensorrt-llm"
    port = containers(pod["spec"])["gateway"]["ports"][0]
    assert spec["targetPorts"] == [{"number": port["containerPort"]}]
    (rule,) = spec_of(pool, "HTTPRoute")["rules"]
    (backend,) = rule["backendRefs"]
    (made,) = of_kind(pool, "InferencePool")
    assert (backend["kind"], backend["name"]) == ("InferencePool", made["metadata"]["name"])
    admitted = spec_of(pool, "NetworkPolicy")["ingress"][0]["ports"]
    assert port["name"] in {one["port"] for one in admitted}


def test_gateway_beside_the_server_reads_its_metrics(pool: list[Manifest]) -> None:
    pod = containers(pod_of(pool)["spec"])
    ports = {port["name"]: port["containerPort"] for port in pod["triton"]["ports"]}
    given = options(pod["gateway"]["args"])
    assert given["triton"] == f"127.0.0.1:{ports['grpc']}"
    assert given["server_metrics"] == f"http://127.0.0.1:{ports['metrics']}/metrics"
    assert pod["gateway"]["ports"][0]["containerPort"] == given["port"]


def test_pod_drains_as_long_as_both_containers_do(pool: list[Manifest]) -> None:
    spec = pod_of(pool)["spec"]
    before_s = int(containers(spec)["gateway"]["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = options(containers(spec)["gateway"]["args"])["drain_s"]
    assert before_s + drain_s < spec["terminationGracePeriodSeconds"]


def test_manifests_of_kubernetes_are_valid(pool: list[Manifest]) -> None:
    for kind in ("Deployment", "NetworkPolicy", "HorizontalPodAutoscaler", "Service"):
        for manifest in of_kind(pool, kind):
            kubernetes_validate.validate(manifest, "1.37.0", strict=True)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda one: one["metadata"]["name"])
def test_kserve_starts_what_the_settings_and_options_know(runtime: Manifest) -> None:
    spec = runtime["spec"]
    pod = {name: spec[name] for name in ("containers", "volumes")}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod}
    kubernetes_validate.validate(made, "1.37.0", strict=True)
    server = containers(spec)["kserve-container"]
    for variable in server["env"]:
        section, field = variable["name"].removeprefix("CARD_").lower().split("__")
        assert field in Settings.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    front = containers(spec).get("transformer-container")
    assert (front is not None) == (spec["protocolVersions"] == ["openai"])
    if front is not None:
        assert options(front["args"])["port"] == front["ports"][0]["containerPort"]
