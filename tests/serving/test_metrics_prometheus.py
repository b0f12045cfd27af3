"""Dashboards and alerts ask for what the server really tells: asked by a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_server import RULES, Prometheus, running_prometheus
from running_service import Refused, RunningService, StartService

from card.serving.metrics.exporter import DECODINGS, FAMILIES
from card.settings import REPOSITORY_ROOT

DASHBOARDS = sorted((REPOSITORY_ROOT / "deploy/grafana/dashboards").glob("*.json"))
GRAFANA_VARIABLES = {
    "$__rate_interval": "1m",
    "$__interval": "15s",
    "$__range": "5m",
    "$decoding": ".*",
}
THRESHOLD = re.compile(r"^(?P<operand>.+?)\s(?:==|!=|<=|>=|<|>)\s[\d.]+$", re.DOTALL)
EVALUATION_S = 30.0
ABSENCE = re.compile(r"^absent\((?P<operand>.+)\)$", re.DOTALL)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def operand(expression: str) -> str:
    """What an alert compares: it has data even while the alert, rightly, has none."""
    found = THRESHOLD.match(expression) or ABSENCE.match(expression)
    assert found, f"{expression!r} is neither `... > number` nor absent(...)"
    return found["operand"]


def panel_expressions() -> Iterator[tuple[str, str]]:
    """(panel, expression) of every dashboard, with Grafana's variables filled in."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for variable, value in GRAFANA_VARIABLES.items():
                    expression = expression.replace(variable, value)
                assert "$" not in expression, expression
                yield f"{file.name}: {panel['title']}", expression


@pytest.fixture(scope="module")
def scraped(
    start_service: StartService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that has seen a service before and after a small load."""
    with start_service({"cache": {"slots": 2}, "limits": {"queued_requests": 2}}) as service:
        serving = service.settings.serving
        targets = [f"127.0.0.1:{port}" for port in (serving.metrics_port, serving.health_port)]
        with running_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
            asyncio.run(scrape_a_load(service, prometheus))
            yield prometheus


async def scrape_a_load(service: RunningService, prometheus: Prometheus) -> None:
    def scraped_tokens() -> float:
        (total,) = prometheus.query("sum(card_committed_tokens_total)") or [{"value": (0, "-1")}]
        return float(total["value"][1])

    await service.until(lambda: len(prometheus.query("up == 1")) == 2, "both endpoints are scraped")
    await service.until(lambda: scraped_tokens() == 0, "every series begins at 0")
    await load(service)
    committed = service.metric("card_committed_tokens_total")
    await service.until(lambda: scraped_tokens() >= committed, "the load is scraped")
    await service.until(  # else there is no rate of what only the supervisor tells
        lambda: len(prometheus.query("count_over_time(up[5m]) > 1")) == 2,
        "both endpoints are scraped twice",
    )


async def load(service: RunningService) -> None:
    """Every decoding mode, more requests than slots, one that is wrong."""

    async def ask(decoding: str) -> None:
        await service.ask(
            text_input="def fibonacci(n):", max_tokens=48, end_id=-1, decoding=decoding, stream=True
        )

    for decoding in DECODINGS:
        await ask(decoding)  # by itself: of two, the draft may be stopped, and no cache asked
        await asyncio.gather(ask(decoding), ask(decoding))
    crowd = await asyncio.gather(*(ask("card") for _ in range(8)), return_exceptions=True)
    refusals = [answer for answer in crowd if answer is not None]
    assert refusals
    assert all("UNAVAILABLE: all 2 slots are in use" in str(refusal) for refusal in refusals)
    with pytest.raises(Refused, match="temperature"):
        await service.ask(text_input="x", temperature=-1.0)


def test_every_panel_has_data(scraped: Prometheus) -> None:
    asked = list(panel_expressions())
    assert len(asked) > 30
    assert [panel for panel, expression in asked if not scraped.query(expression)] == []


def test_every_alert_compares_something_that_exists(scraped: Prometheus) -> None:
    empty = [rule["alert"] for rule in alerts() if not scraped.query(operand(rule["expr"]))]
    assert empty == []


def test_prometheus_when_the_service_is_healthy_evaluates_every_rule_and_fires_none(
    scraped: Prometheus,
) -> None:
    known = {rule["alert"] for rule in alerts()}

    def evaluated() -> dict[str, dict[str, Any]]:
        return {rule["name"]: rule for rule in scraped.rules() if rule["health"] != "unknown"}

    limit = time.monotonic() + EVALUATION_S
    while set(evaluated()) != known:
        assert time.monotonic() < limit, known - set(evaluated())
        time.sleep(0.1)
    assert {rule["lastError"] for rule in evaluated().values() if "lastError" in rule} == set()
    assert [name for name, rule in evaluated().items() if rule["state"] == "firing"] == []


def test_every_metric_of_card_is_shown_or_watched(scraped: Prometheus) -> None:
    """A metric that no panel shows is a cost without a use."""
    asked = " ".join(
        [expression for _, expression in panel_expressions()] + [rule["expr"] for rule in alerts()]
    )
    used = set(re.findall(r"\bcard_\w+", asked))
    unused = [
        family.name
        for family in FAMILIES
        if not used & {family.name, *(f"{family.name}_{end}" for end in ("bucket", "sum", "count"))}
    ]
    assert unused == []
    told = {sample["metric"]["__name__"] for sample in scraped.query("{__name__=~'card_.+'}")}
    assert used <= told
