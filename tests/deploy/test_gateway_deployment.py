"""The OpenAI gateway in its image, in Compose and on Kubernetes: the three agree with its options,
and with the service that it stands in front of."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from compose_file import mounts, ports, seconds, services_of
from dockerfile import Stage, imported_packages, models_of_the_cpu_image, stages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rendered_manifests import (
    GATEWAY,
    GATEWAY_CPU,
    MODELS,
    Manifest,
    container_of,
    name_of,
    of_kind,
    only,
    pod_of,
    rendered,
    volume,
)

from card.settings import REPOSITORY_ROOT, Settings
from card_gateway import command
from card_gateway.app import create_app
from card_gateway.command import KEY_VARIABLE

PACKAGE = REPOSITORY_ROOT / "gateway/card_gateway"


def options(arguments: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """What the gateway understands by a command line and an environment; fails if it does not."""
    app = typer.Typer()
    app.command()(command.serve)
    parser = typer.main.get_command(app)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return dict(parser.make_context("card-gateway", list(arguments)).params)


def routes() -> set[str]:
    return {route.path for route in create_app(command.Gateway()).routes}  # type: ignore[attr-defined]


@pytest.fixture
def image() -> Stage:
    return stages()["gateway"]


@pytest.fixture
def in_image(image: Stage) -> dict[str, Any]:
    """The options of a container that is started without arguments."""
    return options(image.words("CMD"), _variables(image))


@pytest.fixture
def manifests_of_gateway() -> list[Manifest]:
    return rendered(GATEWAY)


def _variables(image: Stage) -> dict[str, str]:
    return dict(word.split("=", 1) for word in image.last("ENV").split() if "=" in word)


# --- the image -----------------------------------------------------------------------------------


def test_the_image_starts_the_gateway_below_an_init_for_others_to_reach(
    image: Stage, in_image: dict[str, Any]
) -> None:
    assert image.words("ENTRYPOINT") == ["tini", "--", "python", "-m", "card_gateway"]
    assert in_image["host"] == "0.0.0.0"
    assert image.last("EXPOSE") == str(in_image["port"])
    assert image.last("USER") == "1000:1000"


def test_the_image_finds_the_tokenizer_where_the_settings_have_the_target(
    in_image: dict[str, Any], settings: Settings
) -> None:
    assert in_image["tokenizer"] == settings.target.path


def test_the_health_check_asks_what_the_gateway_answers(
    image: Stage, in_image: dict[str, Any]
) -> None:
    assert f"http://127.0.0.1:{in_image['port']}/health" in image.last("HEALTHCHECK")
    assert "/health" in routes()


def test_the_gateway_requires_every_package_that_it_imports() -> None:
    """The image has nothing but the package itself and what its metadata asks for."""
    distributions = importlib.metadata.packages_distributions()
    required = {"card-gateway"} | {
        canonicalize_name(Requirement(line).name)
        for name in ("card-gateway", "card-client", "fastapi")
        for line in importlib.metadata.requires(name) or ()
    }
    for name in imported_packages(PACKAGE):
        assert required & {canonicalize_name(found) for found in distributions[name]}, name


# --- Compose -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "name"), [("cpu", "triton-cpu"), ("gpu", "triton-gpu")])
def test_compose_leads_it_to_the_server_of_either_profile(
    image: Stage, profile: str, name: str
) -> None:
    service, server = services_of("openai")["gateway"], services_of(profile)[name]
    chosen = options(service["command"], _variables(image))
    host, port = chosen["triton"].split(":")
    assert host in server["networks"]["default"]["aliases"]
    assert int(port) in ports(server)
    assert mounts(service)["/models"] == mounts(server)["/models"]
    assert mounts(service)["/models"][1], "read-only"


def test_compose_gives_it_a_key_and_lets_it_drain(in_image: dict[str, Any]) -> None:
    service = services_of("openai")["gateway"]
    assert seconds(service["stop_grace_period"]) > in_image["drain_s"]
    assert KEY_VARIABLE in service["environment"]


# --- Kubernetes ----------------------------------------------------------------------------------


def test_it_listens_where_probes_service_and_policy_look(
    manifests_of_gateway: list[Manifest], image: Stage
) -> None:
    container = container_of(manifests_of_gateway)
    (port,) = container["ports"]
    chosen = options(container["args"], _variables(image))
    assert port["containerPort"] == chosen["port"]
    (service,) = only(manifests_of_gateway, "Service")["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (chosen["port"], port["name"])
    assert container["startupProbe"]["tcpSocket"]["port"] == port["name"]
    # A server that is away makes it unready; to start it again would help nobody.
    assert container["livenessProbe"]["tcpSocket"]["port"] == port["name"]
    ready = container["readinessProbe"]["httpGet"]
    assert ready["port"] == port["name"]
    assert ready["path"] in routes()
    (rule,) = only(manifests_of_gateway, "NetworkPolicy")["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [port["name"]]


def test_it_asks_all_pods_of_the_service_and_may_reach_them(
    manifests_of_gateway: list[Manifest], manifests: list[Manifest]
) -> None:
    chosen = options(container_of(manifests_of_gateway)["args"], {})
    host, number = chosen["triton"].split(":")
    asked = {name_of(one): one["spec"] for one in of_kind(manifests, "Service")}[host]
    assert asked["clusterIP"] == "None", "requests could not take turns"
    (grpc,) = (one for one in asked["ports"] if one["port"] == int(number))
    (target,) = (
        port["containerPort"]
        for port in container_of(manifests)["ports"]
        if port["name"] == grpc["targetPort"]
    )
    policy = only(manifests_of_gateway, "NetworkPolicy")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    pods, names = policy["egress"]
    (peer,) = pods["to"]
    assert peer["podSelector"]["matchLabels"].items() <= (
        pod_of(manifests)["metadata"]["labels"].items()
    )
    assert [port["port"] for port in pods["ports"]] == [target]
    assert {port["port"] for port in names["ports"]} == {53}
    # And the service lets it in: it is of the same namespace.
    clients = only(manifests, "NetworkPolicy")["spec"]["ingress"][0]
    assert {"podSelector": {}} in clients["from"]
    assert "grpc" in {port["port"] for port in clients["ports"]}


def test_it_reads_the_targets_tokenizer_from_the_models(
    manifests_of_gateway: list[Manifest], image: Stage, settings: Settings
) -> None:
    claim = volume(manifests_of_gateway, "/models")["persistentVolumeClaim"]
    assert claim["claimName"] == name_of(only(rendered(MODELS), "PersistentVolumeClaim"))
    assert claim["readOnly"]
    chosen = options(container_of(manifests_of_gateway)["args"], _variables(image))
    assert chosen["tokenizer"] == settings.target.path
    assert chosen["tokenizer"].is_relative_to("/models")


def test_beside_the_chat_pair_it_reads_the_tokenizer_of_the_cpu_image(
    manifests_of_gateway: list[Manifest], image: Stage
) -> None:
    manifests = rendered(GATEWAY_CPU)
    spec = pod_of(manifests)["spec"]
    (init,) = spec.pop("initContainers")
    assert init["image"] == container_of(rendered("cpu"))["image"]
    program, *_, source, copied_to = init["command"]
    assert program == "cp"
    assert Path(source).is_relative_to(models_of_the_cpu_image())
    (mount,) = init["volumeMounts"]
    assert Path(copied_to) == Path(mount["mountPath"])
    shared = volume(manifests, "/models")
    assert shared["name"] == mount["name"]
    assert "emptyDir" in shared
    chosen = options(container_of(manifests)["args"], _variables(image))
    assert chosen["tokenizer"] == Path("/models") / Path(source).name
    # In everything else it is the other one.
    others = pod_of(manifests_of_gateway)["spec"]
    for one in (spec, others):
        one["volumes"] = [found for found in one["volumes"] if found["name"] != mount["name"]]
    assert manifests == manifests_of_gateway


def test_a_pod_may_drain_as_long_as_the_gateway_does(manifests_of_gateway: list[Manifest]) -> None:
    container = container_of(manifests_of_gateway)
    _, before = container["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = int(before) + options(container["args"], {})["drain_s"]
    assert needed_s < pod_of(manifests_of_gateway)["spec"]["terminationGracePeriodSeconds"]
