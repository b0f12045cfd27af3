"""The service with TensorRT-LLM as the engine of both models: the stand-in in its place.

Triton, the supervisor and the adapter are real; only the package `tensorrt_llm` is not. The tests
share one service; those that kill come last and leave it well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from guest_streams import PROMPTS, texts_while_killed
from running_service import Refused, RunningService, running_service

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))
from installation import make_environment

MAX_TOKENS = 64

SETTINGS: dict[str, Any] = {
    "engine": "tensorrt_llm",
    "draft": {"tensorrt_llm": {"devices": [1], "side_branches": 1}},
    "speculation": {"rows": 8, "depth": 16},
    "cache": {"slots": 3},
    "limits": {"prompt_tokens": 128, "context_tokens": 512, "max_tokens": 300},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("tensorrt_llm")
    with running_service(folder, SETTINGS, make_environment(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def right(service: RunningService) -> list[str]:
    """What the target writes without speculation, one prompt at a time."""
    return service.alone(PROMPTS, max_tokens=MAX_TOKENS)


async def accepted_of(service: RunningService, **request: Any) -> tuple[str, int, int]:
    """Text, accepted and drafted tokens of one request."""
    replies = await service.ask(return_perf_metrics=True, **request)
    last = replies[-1]
    return (
        "".join(reply.text for reply in replies),
        int(last.one("total_accepted_draft_tokens")),
        int(last.one("total_draft_tokens")),
    )


async def test_text_is_the_targets_when_streams_are_speculated(
    service: RunningService, right: list[str]
) -> None:
    """One after another, and more at once than there are slots."""
    await service.until_speculates(PROMPTS[0])
    asked = (service.text(prompt, max_tokens=MAX_TOKENS) for prompt in PROMPTS)
    assert list(await asyncio.gather(*asked)) == right
    for prompt, text in zip(PROMPTS, right, strict=True):
        found, accepted, drafted = await accepted_of(
            service, text_input=prompt, max_tokens=MAX_TOKENS, stream=True
        )
        assert found == text
        assert 0 <= accepted <= drafted


async def test_sampled_text_is_speculated_when_its_parameters_are_proven(
    service: RunningService,
) -> None:
    await service.until_speculates(PROMPTS[0], "total_draft_tokens", temperature=0.8, top_p=0.9)
    found = await accepted_of(service, text_input=PROMPTS[0], max_tokens=32, min_tokens=5)
    assert found[1:] == (0, 0), "an unproven parameter goes without candidates"
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT: repetition_penalty is 1\.2; .* ignores"):
        await service.ask(text_input=PROMPTS[0], max_tokens=8, repetition_penalty=1.2)


# --- kills ----------------------------------------------------------------------------------------


def worker_of(service: RunningService, model: str) -> int:
    """The engine's own process below the model's."""
    children = psutil.Process(service.pid_of(model)).children()
    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    (worker,) = workers
    return worker.pid


async def test_worker_is_replaced_when_it_dies_idle(
    service: RunningService, right: list[str]
) -> None:
    old = service.pid_of("target")
    os.kill(worker_of(service, "target"), signal.SIGKILL)
    await service.until_back_without(old)
    assert await service.text(PROMPTS[0], max_tokens=MAX_TOKENS) == right[0]


@pytest.mark.parametrize("part", ["model", "worker"])
@pytest.mark.parametrize("role", ["draft", "target"])
async def test_text_goes_on_when_a_model_or_its_worker_is_killed(
    service: RunningService, right: list[str], role: str, part: str
) -> None:
    old = service.pid_of(role)
    victim = old if part == "model" else worker_of(service, role)
    texts = await texts_while_killed(service, victim, streams=3, max_tokens=MAX_TOKENS)
    await service.until_back_without(old)
    assert texts == right[:3]
    await service.until_speculates(PROMPTS[0])
    await service.until(lambda: service.metric("card_slots_in_use") == 0, "all slots free")
