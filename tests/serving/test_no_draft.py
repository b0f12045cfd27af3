"""A service without a draft: it speculates by n-grams, and nothing waits for what is not there."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from every_way import Asked, write_so_while_one_is_struck
from running_service import Overrides, Reply, RunningService, StartService

ASKED: list[Asked] = [
    ("def fibonacci(n):", {"max_tokens": 160, "end_id": -1}, {}),
    ("import os\n\n\ndef walk(path):\n    for name in", {"max_tokens": 160, "seed": 5}, {}),
    ("x", {"max_tokens": 160, "end_id": -1, "temperature": 0.8, "seed": 5}, {"decoding": "pearl"}),
]


@pytest.fixture(scope="module")
def alone(start_service: StartService) -> Iterator[RunningService]:
    settings: Overrides = {
        "draft": {"path": "/nowhere/draft"},
        "speculation": {"drafter": "ngram", "shared_ngrams": True, "query": "subtree"},
    }
    with start_service(settings) as service:
        yield service


async def test_it_is_ready_and_names_no_draft(alone: RunningService) -> None:
    assert alone.health["state"] == "ready"
    assert "draft" not in alone.health["models"]
    await alone.until(lambda: alone.metric("card_engine_up", engine="target") == 1, "it is up")
    silence_s = alone.metric("card_engine_silence_seconds", engine="draft")
    assert silence_s == 0, "there is no such sample: it would be -1"


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


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_text_when_the_target_is_struck_goes_on(
    alone: RunningService, blow: signal.Signals
) -> None:
    await write_so_while_one_is_struck(alone, ASKED, "target", blow)
