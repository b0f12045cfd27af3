"""The unit for systemd agrees with the code, and with the page that says how to install it."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
import typer

from card.serving import supervisor
from card.serving.supervision.supervisor import LINGER_S
from card.settings import REPOSITORY_ROOT, Settings, load_settings

UNIT = REPOSITORY_ROOT / "deploy/systemd/card.service"
KILL_S = 10.0
"""How long the supervisor may take to end processes that do not answer (`stubs.kill`)."""


def _section() -> str:
    """What the page says of a service without a container."""
    page = (REPOSITORY_ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    return page.split("### Without a container\n")[1].split("\n## ")[0]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _section(), re.DOTALL)


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    text = UNIT.read_text(encoding="utf-8")
    parser.read_string(text.replace("\\\n", " "))
    return parser


@pytest.fixture
def service(unit: configparser.ConfigParser) -> configparser.SectionProxy:
    return unit["Service"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Those of the page."""
    (text,) = _blocks("yaml")
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def test_it_starts_the_supervisor_with_options_that_it_knows(
    service: configparser.SectionProxy,
) -> None:
    python, *arguments = shlex.split(service["ExecStart"])
    assert arguments[:2] == ["-m", supervisor.__name__]
    assert python == "/opt/card/.venv/bin/python"
    app = typer.Typer()
    app.command()(supervisor.main)
    options = typer.main.get_command(app).make_context("supervisor", arguments[2:]).params
    assert str(options["settings"]) == "/etc/card/settings.yaml"
    assert str(options["model_repository"]) == "/opt/card/model_repository"
    assert (REPOSITORY_ROOT / "model_repository").is_dir()


def test_sigterm_reaches_the_supervisor_alone_which_is_given_the_time_to_drain(
    service: configparser.SectionProxy, settings: Settings
) -> None:
    assert service["KillMode"] == "mixed"
    needed_s = settings.serving.drain_s + LINGER_S + KILL_S
    assert needed_s <= float(service["TimeoutStopSec"]) <= 2 * needed_s


def test_what_ends_is_started_again_unless_that_is_of_no_use(
    service: configparser.SectionProxy,
) -> None:
    assert service["Restart"] == "always"
    assert "Exit codes:" in (supervisor.__doc__ or "")
    refused = re.search(r"(\d) this machine or the\s+settings do not", supervisor.__doc__ or "")
    assert refused is not None
    assert service["RestartPreventExitStatus"] == refused.group(1)
    assert service["OOMPolicy"] == "continue", "the supervisor brings back what memory ran out for"


def test_strangers_meet_the_guard_alone_and_the_user_gains_nothing(
    service: configparser.SectionProxy, settings: Settings
) -> None:
    serving = settings.serving
    assert serving.guard
    assert not serving.http_inference
    assert {"--http-address=127.0.0.1", "--metrics-address=127.0.0.1"} <= set(
        serving.triton_arguments
    )
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
    assert "PrivateTmp" not in service
