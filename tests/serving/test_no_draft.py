"""A service without a draft: it speculates by n-grams, and nothing waits for what is not there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from running_service import Overrides, Reply, RunningService, StartService

PROMPT = "def add(a, b):\n    return a + b\n\ndef add(a, b):\n"


@pytest.fixture(scope="module")
def alone(start_service: StartService) -> Iterator[RunningService]:
    settings: Overrides = {
        "draft": {"path": "/nowhere/draft"},
        "speculation": {"drafter": "ngram", "shared_ngrams": True},
    }
    with start_service(settings) as service:
        yield service


async def texts(service: RunningService, decodings: list[str], **more: object) -> list[str]:
    return [await service.text(PROMPT, max_tokens=48, decoding=d, **more) for d in decodings]


async def test_it_is_ready_and_names_no_draft(alone: RunningService) -> None:
    assert alone.health["state"] == "ready"
    assert "draft" not in alone.health["models"]
    await alone.until(lambda: alone.metric("card_engine_up", engine="target") == 1, "it is up")
    silence_s = alone.metric("card_engine_silence_seconds", engine="draft")
    assert silence_s == 0, "there is no such sample: it would be -1"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_every_pacing_writes_the_targets_text(
    alone: RunningService, temperature: float
) -> None:
    decodings = ["autoregressive", "card", "draft_then_verify", "pearl"]
    found = await texts(alone, decodings, temperature=temperature, seed=3, end_id=-1)
    assert len(set(found)) == 1


async def test_a_second_text_with_a_salt_takes_fewer_passes(alone: RunningService) -> None:
    async def steps(salt: str, **more: bool) -> int:
        asked = {"cache_salt": salt, "return_perf_metrics": True, "temperature": 1.2, "seed": 8}
        replies: list[Reply] = await alone.ask(
            text_input="Once upon", max_tokens=48, end_id=-1, **asked, **more
        )
        return int(replies[-1].one("target_steps"))

    first, again, other = await steps("a"), await steps("a"), await steps("b")
    assert again < first / 2
    assert other == first
    unkept = [await steps(salt, skip_reading_prefix_cache=True) for salt in ("a", "c")]
    assert [*unkept, await steps("c")] == [first] * 3, "neither told nor kept"


async def test_a_target_that_dies_comes_back_to_the_same_text(alone: RunningService) -> None:
    (before,) = await texts(alone, ["card"])
    lost = alone.pid_of("target")
    os.kill(lost, signal.SIGKILL)
    await alone.until_back_without(lost)
    assert await texts(alone, ["card"]) == [before]
