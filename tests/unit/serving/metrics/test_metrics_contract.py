"""Names are a contract: with dashboards, with alerts, and with the page that explains them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from card.serving.metrics import FAMILIES
from card.serving.supervision.health import ModelHealth, ServiceHealth, exposition
from card.serving.supervision.states import STUBS
from card.settings import REPOSITORY_ROOT

PAGE = (REPOSITORY_ROOT / "docs/operations.md").read_text(encoding="utf-8")
RULES = REPOSITORY_ROOT / "deploy/prometheus/card.rules.yml"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]


def anchors() -> set[str]:
    """Of the headings, as GitHub and others make them."""
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def documented() -> dict[str, tuple[str, set[str]]]:
    """Metric -> (kind, labels), from the tables of the page."""
    rows = re.findall(r"^\| `(card_\w+)` \| (\w+) \| ([\w, ]*)\| \S", PAGE, re.MULTILINE)
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}


def test_every_metric_is_explained_as_it_is() -> None:
    """A renamed metric breaks dashboards, and the page says so."""
    models = {"draft": ModelHealth("well", pid=1)}
    page = exposition(ServiceHealth("ready", 1, 0, models), STUBS, live=True).decode()
    of_supervisor = dict(re.findall(r"^# TYPE (card_\w+) (\w+)$", page, re.MULTILINE))
    told = {family.name: (family.kind, set(family.labels)) for family in FAMILIES}
    page_says = documented()
    assert {name: page_says[name] for name in told} == told
    kinds = {name: kind for name, (kind, _) in page_says.items() if name not in told}
    assert kinds == of_supervisor


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_leads_to_its_place_in_the_runbook(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    assert anchor == alert["alert"].lower()
    assert anchor in anchors()
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"].endswith(".")
