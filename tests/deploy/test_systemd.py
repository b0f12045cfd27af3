"""The unit for systemd agrees with the code, and with the page that says how to install it."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
import typer
from needs import stop_s

from card.serving import supervisor
from card.settings import REPOSITORY_ROOT, Settings, load_settings


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    unit = (REPOSITORY_ROOT / "deploy/systemd/card.service").read_text(encoding="utf-8")
    parser.read_string(unit.replace("\\\n", " "))
    return parser["Service"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Those that the page shows for a service without a container."""
    page = (REPOSITORY_ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    section = page.split("### Without a container\n")[1].split("\n## ")[0]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def test_unit_starts_the_supervisor_with_options_that_it_knows(
    service: configparser.SectionProxy,
) -> None:
    _, *arguments = shlex.split(service["ExecStart"])
    assert arguments[:2] == ["-m", supervisor.__name__]
    app = typer.Typer()
    app.command()(supervisor.main)
    options = typer.main.get_command(app).make_context("supervisor", arguments[2:]).params
    assert str(options["settings"]) == "/etc/card/settings.yaml"
    assert str(options["model_repository"]) == "/opt/card/model_repository"


def test_unit_sends_sigterm_to_the_supervisor_and_lets_it_drain(
    service: configparser.SectionProxy, settings: Settings
) -> None:
    assert service["KillMode"] == "mixed"
    assert stop_s(settings) <= float(service["TimeoutStopSec"]) <= 2 * stop_s(settings)


def test_unit_restarts_the_service_unless_settings_were_refused(
    service: configparser.SectionProxy,
) -> None:
    assert service["Restart"] == "always"
    refused = re.search(r"(\d) this machine or the\s+settings do not", supervisor.__doc__ or "")
    assert refused is not None
    assert service["RestartPreventExitStatus"] == refused.group(1)
    assert service["OOMPolicy"] == "continue", "the supervisor restarts what memory ran out for"


def test_unit_and_page_let_clients_meet_the_guard_alone(
    service: configparser.SectionProxy, settings: Settings
) -> None:
    serving = settings.serving
    assert serving.guard
    assert not serving.http_inference
    closed = {"--http-address=127.0.0.1", "--metrics-address=127.0.0.1"}
    assert closed <= set(serving.triton_arguments)
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
