"""The OpenAI gateway's image, Compose service and manifests agree with its options."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from compose_file import mounts, ports, seconds, services
from dockerfile import stages
from manifests import (
    GATEWAY,
    Manifest,
    container_of,
    of_kind,
    pod_of,
    rendered,
    spec_of,
    volume_at,
)

from card.settings import Settings
from card_gateway import command
from card_gateway.app import create_app
from card_gateway.command import KEY_VARIABLE

IMAGE = stages()["gateway"]


def options(arguments: list[str]) -> dict[str, Any]:
    """What the gateway in its image understands by a command line; fails if it does not."""
    app = typer.Typer()
    app.command()(command.serve)
    parser = typer.main.get_command(app)
    with pytest.MonkeyPatch.context() as patch:
        for word in IMAGE.last("ENV").split():
            patch.setenv(*word.split("=", 1))
        return dict(parser.make_context("card-gateway", list(arguments)).params)


def routes() -> set[str]:
    return {route.path for route in create_app(command.Gateway()).routes}  # type: ignore[attr-defined]


@pytest.fixture
def gateway() -> list[Manifest]:
    return rendered(GATEWAY)


def test_image_starts_the_gateway_where_its_health_check_asks() -> None:
    assert IMAGE.words("ENTRYPOINT") == ["tini", "--", "python", "-m", "card_gateway"]
    chosen = options(IMAGE.words("CMD"))
    assert chosen["host"] == "0.0.0.0"
    assert IMAGE.last("EXPOSE") == str(chosen["port"])
    assert IMAGE.last("USER") == "1000:1000"
    assert f"http://127.0.0.1:{chosen['port']}/health" in IMAGE.last("HEALTHCHECK")
    assert "/health" in routes()


def test_tokenizer_is_that_of_the_settings_target(
    gateway: list[Manifest], settings: Settings
) -> None:
    for arguments in (IMAGE.words("CMD"), container_of(gateway)["args"]):
        assert options(arguments)["tokenizer"] == settings.target.path
    assert volume_at(gateway, "/models")["readOnly"]


@pytest.mark.parametrize("name", ["triton-cpu", "triton-gpu"])
def test_compose_leads_it_to_the_server_of_either_profile(name: str, settings: Settings) -> None:
    service, server = services()["gateway"], services()[name]
    chosen = options(service["command"])
    host, port = chosen["triton"].split(":")
    assert host in server["networks"]["default"]["aliases"]
    assert int(port) in ports(server)
    assert chosen["server_metrics"] == f"http://{host}:{settings.serving.metrics_port}/metrics"
    assert mounts(service)["/models"] == mounts(server)["/models"]
    assert seconds(service["stop_grace_period"]) > chosen["drain_s"]
    assert KEY_VARIABLE in service["environment"]


def test_probes_service_and_policy_name_the_port_that_it_listens_on(
    gateway: list[Manifest],
) -> None:
    container = container_of(gateway)
    (port,) = container["ports"]
    assert port["containerPort"] == options(container["args"])["port"]
    (service,) = spec_of(gateway, "Service")["ports"]
    assert (service["port"], service["targetPort"]) == (port["containerPort"], port["name"])
    # An unreachable server makes the gateway unready; a restart of the gateway would not help.
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"]["port"] == port["name"]
    ready = container["readinessProbe"]["httpGet"]
    assert ready["port"] == port["name"]
    assert ready["path"] in routes()
    (rule,) = spec_of(gateway, "NetworkPolicy")["ingress"]
    assert [one["port"] for one in rule["ports"]] == [port["name"]]


def test_it_asks_every_pod_of_the_service_and_may_reach_them(
    gateway: list[Manifest], manifests: list[Manifest]
) -> None:
    host, number = options(container_of(gateway)["args"])["triton"].split(":")
    asked = {one["metadata"]["name"]: one["spec"] for one in of_kind(manifests, "Service")}[host]
    assert asked["clusterIP"] == "None", "else one pod gets all requests of a connection"
    (grpc,) = (one for one in asked["ports"] if one["port"] == int(number))
    target = {port["name"]: port["containerPort"] for port in container_of(manifests)["ports"]}
    pods, names = spec_of(gateway, "NetworkPolicy")["egress"]
    (peer,) = pods["to"]
    labels = pod_of(manifests)["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert [port["port"] for port in pods["ports"]] == [target[grpc["targetPort"]]]
    assert {port["port"] for port in names["ports"]} == {53}
    clients = spec_of(manifests, "NetworkPolicy")["ingress"][0]
    assert {"podSelector": {}} in clients["from"]
    assert "grpc" in {port["port"] for port in clients["ports"]}


def test_pod_may_drain_as_long_as_the_gateway_does(gateway: list[Manifest]) -> None:
    container = container_of(gateway)
    _, before_s = container["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = int(before_s) + options(container["args"])["drain_s"]
    assert needed_s < pod_of(gateway)["spec"]["terminationGracePeriodSeconds"]
