"""docker-compose.yml agrees with the settings, the images and the monitoring."""

from __future__ import annotations

import pytest
import yaml
from compose_file import Service, mounts, ports, seconds, services
from manifests import devices_of, folder
from needs import in_bytes, shared_memory_bytes, stop_s

from card.settings import REPOSITORY_ROOT, Settings, load_settings

CLIENTS, MONITORING, OWN = {8001, 9000}, {8002, 8003, 9090, 3000}, {8000}
OVERLAY = {"triton-cpu": "cpu", "triton-gpu": "gpu-2"}


@pytest.fixture(params=sorted(OVERLAY))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def triton(name: str) -> Service:
    return services()[name]


@pytest.fixture
def settings(name: str) -> Settings:
    return load_settings(folder(OVERLAY[name]) / "settings.yaml")


def test_container_has_the_ports_memory_time_and_devices_of_its_settings(
    triton: Service, settings: Settings
) -> None:
    assert set(ports(triton)) == set(settings.serving.ports.values())
    assert settings.serving.address == "0.0.0.0"
    assert seconds(triton["stop_grace_period"]) >= stop_s(settings)
    assert in_bytes(triton["shm_size"]) >= shared_memory_bytes(settings)
    resources = triton.get("deploy", {}).get("resources", {}).get("reservations", {})
    reserved = sum(device["count"] for device in resources.get("devices", ()))
    assert devices_of(settings) == set(range(reserved))


@pytest.mark.parametrize(
    ("variable", "open_"), [(None, set()), ("PUBLISH", CLIENTS), ("PUBLISH_MONITORING", MONITORING)]
)
def test_only_the_published_ports_listen_beyond_this_host(
    variable: str | None, open_: set[int]
) -> None:
    variables = () if variable is None else ((f"CARD_{variable}", "0.0.0.0"),)
    found: dict[int, str] = {}
    for service in services(*variables).values():
        found |= ports(service)
    assert set(found) == CLIENTS | MONITORING | OWN
    assert {port for port, address in found.items() if address != "127.0.0.1"} == open_


def test_every_container_of_ours_is_confined() -> None:
    for name in (*OVERLAY, "gateway"):
        service = services()[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_prometheus_scrapes_triton_and_the_supervisor(triton: Service, settings: Settings) -> None:
    file = REPOSITORY_ROOT / "deploy/prometheus/prometheus.yml"
    assert mounts(services()["prometheus"])["/etc/prometheus"] == (file.parent, True)
    (job,) = yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]
    (static,) = job["static_configs"]
    wanted = (settings.serving.metrics_port, settings.serving.health_port)
    assert static["targets"] == [f"triton:{port}" for port in wanted]
    assert triton["networks"]["default"]["aliases"] == ["triton"]
