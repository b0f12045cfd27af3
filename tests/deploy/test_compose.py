"""docker-compose.yml as Compose itself reads it, against the settings and the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from compose_file import PROFILES, Service, mounts, ports, seconds, services_of, size_in_bytes
from debian_package import prometheus_programs
from dockerfile import models_of_the_cpu_image
from rendered_manifests import devices_of, folder

from card.cache.pool import pool_bytes
from card.serving.geometry import pool_geometry
from card.serving.supervision.policy import STUBS
from card.serving.supervision.supervisor import LINGER_S
from card.serving.supervision.triton_server import MINIMUM_REGION_BYTES
from card.settings import REPOSITORY_ROOT, Settings, load_settings

KILL_S = 10.0
"""How long the supervisor may take to end processes that do not answer (`stubs.kill`)."""

CLIENTS, MONITORING = {8001, 9000}, {8002, 8003, 9090, 3000}
"""Ports that `CARD_PUBLISH` and `CARD_PUBLISH_MONITORING` publish."""

TRITON = {"cpu": "triton-cpu", "gpu": "triton-gpu"}
OVERLAY = {"cpu": "cpu", "gpu": "gpu-2"}


@pytest.fixture(params=sorted(TRITON))
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def triton(profile: str) -> Service:
    return services_of(profile)[TRITON[profile]]


@pytest.fixture
def settings(triton: Service) -> Settings:
    """What the mounted file says."""
    return load_settings(mounts(triton)["/etc/card/settings.yaml"][0])


def test_models_and_settings_are_mounted_read_only(profile: str, triton: Service) -> None:
    assert mounts(triton) == {
        "/models": (Path("models"), True),
        "/etc/card/settings.yaml": (folder(OVERLAY[profile]) / "settings.yaml", True),
    }


def test_docker_fills_the_volume_with_the_pair_of_the_cpu_image() -> None:
    """A volume that is empty gets what the image of its first container holds at that path."""
    assert str(models_of_the_cpu_image()) == "/models"
    for name, service in (services_of("cpu") | services_of("openai")).items():
        assert mounts(service)["/models"][0] == Path("models"), name


def test_all_ports_are_published_to_this_host_alone(triton: Service, settings: Settings) -> None:
    numbers = settings.serving.ports.values()
    assert ports(triton) == {port: ("127.0.0.1", port) for port in numbers}
    assert settings.serving.address == "0.0.0.0"


def _published(*variables: tuple[str, str]) -> dict[str, set[int]]:
    """Ports by the address of the host on which they listen, of all services."""
    by_address: dict[str, set[int]] = {}
    for profile in PROFILES:
        for service in services_of(profile, *variables).values():
            for port, (address, _) in ports(service).items():
                by_address.setdefault(address, set()).add(port)
    return by_address


def test_what_is_published_to_clients_is_theirs_alone() -> None:
    loopback, everywhere = "127.0.0.1", "0.0.0.0"
    assert set(_published()) == {loopback}
    assert _published(("CARD_PUBLISH", everywhere)) == {
        everywhere: CLIENTS,
        loopback: {8000} | MONITORING,
    }
    assert _published(("CARD_PUBLISH_MONITORING", everywhere)) == {
        everywhere: MONITORING,
        loopback: {8000} | CLIENTS,
    }


def test_a_container_is_given_the_time_to_drain(triton: Service, settings: Settings) -> None:
    needed_s = settings.serving.drain_s + LINGER_S + KILL_S
    assert seconds(triton["stop_grace_period"]) >= needed_s


def test_shared_memory_holds_the_cache(triton: Service, settings: Settings) -> None:
    assert str(settings.cache.directory) == "/dev/shm"
    needed = 2 * pool_bytes(pool_geometry(settings)) + 8 * len(STUBS) * MINIMUM_REGION_BYTES
    assert size_in_bytes(triton["shm_size"]) >= needed


def test_the_gpu_profile_reserves_the_devices_of_its_settings() -> None:
    service = services_of("gpu")["triton-gpu"]
    (reserved,) = service["deploy"]["resources"]["reservations"]["devices"]
    settings = load_settings(folder("gpu-2") / "settings.yaml")
    assert reserved["driver"] == "nvidia"
    assert reserved["capabilities"] == ["gpu"]
    assert devices_of(settings) == set(range(reserved["count"]))
    assert "deploy" not in services_of("cpu")["triton-cpu"]


def test_every_container_is_confined() -> None:
    for service in (services_of("cpu") | services_of("gpu") | services_of("openai")).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_prometheus_scrapes_the_server_and_the_supervisor(
    triton: Service, settings: Settings
) -> None:
    file = REPOSITORY_ROOT / "deploy/prometheus/prometheus.yml"
    assert mounts(services_of("gpu")["prometheus"])["/etc/prometheus"] == (file.parent, True)
    (job,) = yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]
    (static,) = job["static_configs"]
    serving = settings.serving
    assert job["metrics_path"] == "/metrics"
    assert static["targets"] == [f"triton:{serving.metrics_port}", f"triton:{serving.health_port}"]
    assert triton["networks"]["default"]["aliases"] == ["triton"]


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    deployed = REPOSITORY_ROOT / "deploy/prometheus"
    # The rules lie elsewhere in the container.
    file = tmp_path / "prometheus.yml"
    content = (deployed / file.name).read_text(encoding="utf-8")
    file.write_text(content.replace("/etc/prometheus", str(deployed)), encoding="utf-8")
    answer = subprocess.run(
        [prometheus_programs() / "promtool", "check", "config", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"SUCCESS: \d+ rules found", answer.stdout)


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    services = services_of("gpu")
    provisioning = REPOSITORY_ROOT / "deploy/grafana/provisioning"
    mounted = mounts(services["grafana"])
    assert mounted["/etc/grafana/provisioning"] == (provisioning, True)
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    host, port = source["url"].removeprefix("http://").split(":")
    assert int(port) in ports(services[host])
    (provider,) = yaml.safe_load((provisioning / "dashboards/card.yml").read_text())["providers"]
    folder_on_host, read_only = mounted[provider["options"]["path"]]
    assert read_only
    assert list(folder_on_host.glob("*.json"))
