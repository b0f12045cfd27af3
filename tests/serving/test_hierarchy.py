"""A smaller draft drafts for the draft on the real server, whatever else a request chooses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from every_way import write_what_the_target_alone_writes
from real_pair import PAIR
from running_service import ANSWER_S, Overrides, RunningService, StartService

from training.cutting import cut

PROMPTS = ("def fibonacci(n):", "import os\n\n\ndef walk(path):\n    for name in")
WAYS: tuple[dict[str, str], ...] = (
    {},
    {"decoding": "draft_then_verify"},
    {"decoding": "pearl"},
    {"decoding": "branch"},
    {"decoding": "ssd"},
    {"decoding": "card", "growth": "layered"},
    {"decoding": "pearl", "growth": "sampled"},
    {"decoding": "pearl", "growth": "graph"},
    {"decoding": "draft_then_verify", "growth": "graph"},
    {"decoding": "draft_then_verify", "growth": "branch"},
    {"decoding": "branch", "growth": "best_first"},
    {"decoding": "ssd", "growth": "layered"},
    {"decoding": "card", "growth": "fan_out"},
    {"decoding": "card", "growth": "graph"},
)
"""Combinations of the registries, beside phrases, subtrees and the hierarchy of the settings."""


@pytest.fixture(scope="module")
def service(
    start_service: StartService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    smaller: Path = tmp_path_factory.mktemp("draft-small")
    cut(PAIR / "target", smaller, [0])
    speculation = {"drafter": "hierarchy", "proposals": "phrases", "query": "subtree", "gamma": 4}
    settings: Overrides = {
        "draft_small": {"path": str(smaller)},
        "speculation": speculation,
        "limits": {"queue_timeout_s": ANSWER_S},  # more streams than slots
    }
    with start_service(settings) as running:
        yield running


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}])
async def test_streams_of_every_combination_at_once_write_what_the_target_alone_writes(
    service: RunningService, sampling: dict[str, Any]
) -> None:
    await write_what_the_target_alone_writes(service, WAYS, PROMPTS, sampling)


async def test_its_candidates_are_accepted(service: RunningService) -> None:
    way: dict[str, Any] = {"max_tokens": 64, "end_id": -1, "return_perf_metrics": True, **WAYS[1]}
    (answer,) = await service.ask(text_input=PROMPTS[0], **way)
    assert answer.one("total_accepted_draft_tokens") > 16
