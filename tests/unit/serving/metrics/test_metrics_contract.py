"""Names are a contract: with dashboards, with alerts, and with the page that explains them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from card.serving.metrics import FAMILIES
from card.serving.metrics.families import DECODINGS, OUTCOMES
from card.serving.requests.refusal import REASONS
from card.serving.supervision.figures import exposition
from card.serving.supervision.policy import STUBS
from card.serving.supervision.sighting import ModelHealth, ServiceHealth
from card.settings import REPOSITORY_ROOT

PAGE = (REPOSITORY_ROOT / "docs/operations.md").read_text(encoding="utf-8")
RULES = REPOSITORY_ROOT / "deploy/prometheus/card.rules.yml"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PER_DECODING = (
    ["counter", name, ["decoding"]]
    for name in (
        "committed_tokens", "drafted_tokens", "accepted_tokens", "target_steps", "queries",
        "query_hits", "query_misses", "corrections", "re_roots", "restarts", "prefix_hits",
        "prefix_hit_tokens",
        "foreign_tokens", "draft_layers", "draft_layers_lost", "draft_rows_saved",
        "draft_running_seconds", "draft_idle_seconds", "target_running_seconds",
        "target_wait_seconds",
    )
)  # fmt: skip
TIMES = (
    "queue_time", "time_to_first_token", "inter_token_latency", "time_per_output_token",
    "request_duration",
)  # fmt: skip
CONTRACT = {
    "card_requests_total": ("counter", {"decoding", "outcome"}),
    "card_rejections_total": ("counter", {"reason"}),
    **{f"card_{name}_total": ("counter", {"decoding"}) for _, name, _ in PER_DECODING},
    **{f"card_{name}_seconds": ("histogram", {"decoding"}) for name in TIMES},
    "card_target_passes_total": ("counter", set()),
    "card_tokens_per_step": ("histogram", {"decoding"}),
    "card_slots": ("gauge", set()),
    "card_slots_in_use": ("gauge", set()),
    "card_open_sessions": ("gauge", {"decoding"}),
    "card_queued_requests": ("gauge", set()),
    "card_engine_up": ("gauge", {"engine"}),
    "card_engine_silence_seconds": ("gauge", {"engine"}),
    "card_draft_rests": ("gauge", set()),
}
"""Written down anew: whoever renames a metric breaks somebody's dashboard."""


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


def test_names_kinds_and_labels_stay_as_they_are() -> None:
    told = {family.name: (family.kind, set(family.labels)) for family in FAMILIES}
    assert told == CONTRACT


def test_every_metric_is_explained() -> None:
    models = {"draft": ModelHealth("well", pid=1)}
    page = exposition(ServiceHealth("ready", 1, 0, models), STUBS, live=True).decode()
    of_supervisor = dict(re.findall(r"^# TYPE (card_\w+) (\w+)$", page, re.MULTILINE))
    told = {name: kind for name, (kind, _) in CONTRACT.items()} | of_supervisor
    assert {name: kind for name, (kind, _) in documented().items()} == told
    for name, (_, labels) in CONTRACT.items():
        assert documented()[name][1] == labels, name


def test_every_label_value_is_explained() -> None:
    for reason in REASONS:
        assert f"`{reason}`" in PAGE, reason
    assert {"card", "draft_then_verify", "autoregressive"} <= set(DECODINGS)
    assert {"stop", "length", "cancelled", "internal"} <= set(OUTCOMES)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_leads_to_its_place_in_the_runbook(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    assert anchor == alert["alert"].lower()
    assert anchor in anchors()
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"].endswith(".")


def test_the_runbook_speaks_of_no_alert_that_does_not_exist() -> None:
    section = PAGE[PAGE.index("## Alerts") : PAGE.index("## Logs")]
    assert set(re.findall(r"^### (\w+)$", section, re.MULTILINE)) == {a["alert"] for a in ALERTS}
    links = re.findall(r"\]\(#([\w-]+)\)", PAGE)
    assert set(links) <= anchors()
