"""What makes candidates is killed, or stops, under load: every text stays the target's own.

`test_family.py` and `test_faults_matrix.py` strike a draft that grows a tree, `test_remote.py` what
takes the drafts of devices.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from every_way import Asked, write_so_while_one_is_struck
from real_pair import PAIR
from running_service import Overrides, RunningService, StartService

from training.cutting import cut

PROMPTS = ("def fibonacci(n):", "import os\n\n\ndef walk(path):\n    for name in")
WAYS: tuple[dict[str, str], ...] = (
    {},
    {"decoding": "draft_then_verify"},
    {"decoding": "pearl", "growth": "sampled"},
    {"decoding": "branch", "growth": "graph"},
    {"decoding": "ssd", "growth": "layered"},
)
"""Of all combinations a few; `tests/unit/decoding/test_lossless.py` has every pair."""
SAMPLINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 5})


@dataclass(frozen=True)
class Drafter:
    """What settings name, and the model in whose process it runs. The draft of `parallel` was not
    trained for masks."""

    speculation: dict[str, Any]
    victim: str = "draft"
    draft: dict[str, Any] = field(default_factory=dict)


DRAFTERS = {
    "hierarchy": Drafter({"drafter": "hierarchy", "proposals": "phrases", "query": "subtree"}),
    "phrases": Drafter({"drafter": "phrases"}, "target"),
    "parallel": Drafter(
        {"drafter": "parallel", "growth": "lattice", "block": 6}, draft={"mask_ids": [3000]}
    ),
    "ngram": Drafter({"drafter": "ngram", "query": "subtree"}, "target"),
}


@pytest.fixture(scope="module", params=DRAFTERS)
def struck(
    request: pytest.FixtureRequest,
    start_service: StartService,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningService, Drafter]]:
    drafter = DRAFTERS[request.param]
    smaller: Path = tmp_path_factory.mktemp("draft-small")
    cut(PAIR / "target", smaller, [0])
    settings: Overrides = {
        "draft": drafter.draft,
        "draft_small": {"path": str(smaller)},
        "speculation": {"num_draft_tokens": 4, **drafter.speculation},
    }
    with start_service(settings) as service:
        yield service, drafter


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_no_text_changes(
    struck: tuple[RunningService, Drafter], blow: signal.Signals
) -> None:
    service, drafter = struck
    asked: list[Asked] = [
        (prompt, {"max_tokens": 160, "end_id": -1, **sampling}, way)
        for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)
        for way in WAYS
    ]
    await write_so_while_one_is_struck(service, asked, drafter.victim, blow)


async def test_candidates_are_accepted(struck: tuple[RunningService, Drafter]) -> None:
    service, _ = struck
    way: dict[str, Any] = {"max_tokens": 64, "end_id": -1, "return_perf_metrics": True, **WAYS[1]}
    (answer,) = await service.ask(text_input=PROMPTS[0], **way)
    assert answer.one("total_accepted_draft_tokens") > 16
