"""What drafts is killed, stops or reads garbage under load: every text stays the target's own.

`test_family.py` and `test_faults_matrix.py` strike a draft that grows a tree, `test_no_draft.py` a
target that speculates by itself, `test_remote.py` what takes the drafts of devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_way import Asked, write_so_while_one_is_struck
from real_pair import PAIR, TARGET
from running_service import Overrides, RunningService, StartService
from small_heads import save_random_head

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
ASKED: list[Asked] = [
    (prompt, {"max_tokens": 160, "end_id": -1, **sampling}, way)
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)
    for way in WAYS
]
NAN = 0x7FC0_7FC0_7FC0_7FC0


def hierarchy(folder: Path) -> Overrides:
    cut(PAIR / "target", folder, [0])
    speculation = {"drafter": "hierarchy", "proposals": "phrases", "query": "subtree"}
    return {"draft_small": {"path": str(folder)}, "speculation": speculation}


def parallel(_: Path) -> Overrides:
    """The draft was not trained for masks."""
    speculation = {"drafter": "parallel", "growth": "lattice", "block": 6}
    return {"draft": {"mask_ids": [3000]}, "speculation": speculation}


def eagle3(folder: Path) -> Overrides:
    """A random head, which reads the target's hidden states."""
    save_random_head(folder, TARGET)
    return {"draft": {"path": str(folder)}, "cache": {"state_tokens": 64}}


@pytest.fixture(scope="module", params=[hierarchy, parallel, eagle3])
def service(
    request: pytest.FixtureRequest,
    start_service: StartService,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningService]:
    settings: Callable[[Path], Overrides] = request.param
    chosen = settings(tmp_path_factory.mktemp("draft"))
    speculation = {"num_draft_tokens": 4, **chosen.get("speculation", {})}
    with start_service({**chosen, "speculation": speculation}) as running:
        yield running


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_text_when_the_draft_is_struck_is_the_targets(
    service: RunningService, blow: signal.Signals
) -> None:
    await write_so_while_one_is_struck(service, ASKED, "draft", blow)


@pytest.mark.parametrize("service", [eagle3], indirect=True)
async def test_text_when_states_are_not_finite_or_of_another_text_is_the_targets(
    service: RunningService,
) -> None:
    with contextlib.closing(service.pool()) as pool:
        ring = pool.slots["states"]
        random = np.random.default_rng(0)
        alone = {
            prompt: await service.text(prompt, decoding="autoregressive", **request)
            for prompt, request, _ in ASKED
        }
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


async def test_target_when_the_draft_works_verifies_its_candidates(
    service: RunningService,
) -> None:
    way: dict[str, Any] = {"max_tokens": 64, "end_id": -1, "return_perf_metrics": True, **WAYS[1]}
    (answer,) = await service.ask(text_input=PROMPTS[0], **way)
    assert answer.one("total_draft_tokens") > 16
    if service.settings.drafter != "eagle3":
        assert answer.one("total_accepted_draft_tokens") > 16
