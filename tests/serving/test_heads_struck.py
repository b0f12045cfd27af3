"""A draft that reads the target's hidden states is killed or stopped, and the states are scribbled
over: every text stays the target's own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_way import Asked, write_so_while_one_is_struck
from real_pair import TARGET
from running_service import RunningService, StartService
from small_heads import save_random_head

PROMPTS = ("def fibonacci(n):", "import os\n\n\ndef walk(path):\n    for name in")
WAYS: tuple[dict[str, str], ...] = (
    {"decoding": "card"},
    {"decoding": "draft_then_verify"},
    {"decoding": "ssd"},
)
SAMPLINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 5})
ASKED: list[Asked] = [
    (prompt, {"max_tokens": 128, "end_id": -1, **sampling}, way)
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)
    for way in WAYS
]
NAN = 0x7FC0_7FC0_7FC0_7FC0


@pytest.fixture(scope="module", params=["eagle3", "dspark"])
def service(
    start_service: StartService,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[RunningService]:
    head: Path = tmp_path_factory.mktemp("head")
    save_random_head(head, TARGET, kind=request.param)
    with start_service({"draft": {"path": str(head)}, "cache": {"state_tokens": 64}}) as service:
        yield service


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_no_text_changes_when_the_head_is_struck(
    service: RunningService, blow: signal.Signals
) -> None:
    await write_so_while_one_is_struck(service, ASKED, "draft", blow)


async def test_no_text_changes_when_states_are_not_finite_or_of_another_text(
    service: RunningService,
) -> None:
    random = np.random.default_rng(0)
    alone = {
        prompt: await service.text(prompt, decoding="autoregressive", **request)
        for prompt, request, _ in ASKED
    }
    with contextlib.closing(service.pool()) as pool:
        ring = pool.slots["states"]
        reading = asyncio.gather(
            *(service.text(prompt, **way, **request) for prompt, request, way in ASKED)
        )
        while not reading.done():
            one, other = random.integers(len(ring), size=2)
            ring[one] = ring[other]
            ring[other, random.integers(ring.shape[1])] = NAN
            await asyncio.sleep(0.001)
        assert ring.any()  # the target publishes
        del ring
    assert await reading == [alone[prompt] for prompt, _, _ in ASKED]


async def test_target_verifies_what_the_head_drafts(service: RunningService) -> None:
    way: dict[str, Any] = {"max_tokens": 32, "end_id": -1, "return_perf_metrics": True, **WAYS[1]}
    (answer,) = await service.ask(text_input=PROMPTS[0], **way)
    assert answer.one("total_draft_tokens") > 16
