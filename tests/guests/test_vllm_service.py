"""The whole service with vLLM as the target's engine: the real vLLM, the real Triton.

The tests share one service; those that kill come last and leave it well.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from running_service import BACK_S, Refused, RunningService, running_service

PROMPTS = (
    "def fibonacci(n):",
    'def is_prime(number: int) -> bool:\n    """Whether a number is prime."""\n',
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(path):\n    for name in",
    "def merge(left, right):\n    result = []\n    while",
)
MAX_TOKENS = 96

SETTINGS: dict[str, Any] = {
    "target": {"engine": "vllm", "dtype": "float32", "vllm": {"max_num_batched_tokens": 512}},
    "cache": {"slots": 16},
    "limits": {"prompt_tokens": 128, "context_tokens": 512, "max_tokens": 300},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("vllm"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def right(service: RunningService) -> list[str]:
    """What the target writes without speculation, one prompt at a time."""
    return service.alone(PROMPTS, max_tokens=MAX_TOKENS)


async def test_text_is_the_targets_when_sixteen_streams_are_speculated(
    service: RunningService, right: list[str]
) -> None:
    await service.until_speculates(PROMPTS[0])
    asked = (service.text(PROMPTS[n % 5], max_tokens=MAX_TOKENS) for n in range(24))
    assert list(await asyncio.gather(*asked)) == [right[n % 5] for n in range(24)]


async def test_draft_gives_the_candidates_when_ngrams_are_forbidden(
    service: RunningService, right: list[str]
) -> None:
    (reply,) = await service.ask(
        text_input=PROMPTS[1], max_tokens=MAX_TOKENS, forbidden_drafter="ngram",
        return_perf_metrics=True,
    )  # fmt: skip
    assert reply.text == right[1]
    assert int(reply.one("total_accepted_draft_tokens")) > 0


async def test_stream_ends_at_a_stop_word(service: RunningService, right: list[str]) -> None:
    word = right[0][20:24]
    replies = await service.ask(
        text_input=PROMPTS[0], max_tokens=MAX_TOKENS, stop_words=[word], stream=True
    )
    assert "".join(reply.text for reply in replies) == right[0].split(word)[0]
    assert replies[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"min_p": np.array([[0.1]], np.float32), "temperature": 0.7}, "min_p is 0.1"),
        ({"temperature": 2.5}, "temperature is 2.5; it must be at most 2"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be from -2 to 2"),
        ({"logit_bias_ids": [3], "logit_bias_values": np.array([[1.0]], np.float32)}, "logit_bias"),
        ({"guided_decoding_guide_type": "json", "min_tokens": 3}, "min_tokens is 3"),
        ({"decoding": "pearl"}, "vLLM's loop waits for no draft"),
        ({"acceptance": "loose"}, "acceptance is 'loose'"),
    ],
)
async def test_request_is_refused_by_name_when_vllm_cannot_keep_it(
    service: RunningService, request_: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=f"INVALID_ARGUMENT: .*{said}"):
        await service.ask(text_input=PROMPTS[0], max_tokens=4, **request_)


GUIDES = [
    ("regex", r"[a-f]{12}-[0-9]{6}", r"[a-f]{12}-[0-9]{6}"),
    ("choice", '["left of here", "right of here"]', "(left|right) of here"),
    (
        "json_schema",
        json.dumps({
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }),
        r'\{\s*"a"\s*:\s*-?\d+\s*,\s*"b"\s*:\s*"[xy]"\s*\}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "guide", "shape"), GUIDES)
async def test_guide_holds_the_text_when_candidates_are_verified(
    service: RunningService, kind: str, guide: str, shape: str
) -> None:
    asked = {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide, "max_tokens": 64}
    text = await service.text(PROMPTS[0], **asked)
    assert re.fullmatch(shape, text), text
    assert await service.text(PROMPTS[0], decoding="autoregressive", **asked) == text


async def test_seed_repeats_a_sampled_text(service: RunningService) -> None:
    async def text() -> str:
        return await service.text(PROMPTS[0], max_tokens=48, temperature=0.9, top_k=20, seed=11)

    alone = await text()
    beside = (service.text(PROMPTS[n], max_tokens=MAX_TOKENS) for n in range(1, 5))
    again, *_ = await asyncio.gather(text(), *beside)
    assert again == alone


async def test_slot_is_free_when_a_client_leaves(service: RunningService) -> None:
    async for _ in service.stream(text_input=PROMPTS[0], max_tokens=300, end_id=-1, stream=True):
        break
    await service.until(lambda: service.metric("card_slots_in_use") == 0, "all slots free")


# --- kills ----------------------------------------------------------------------------------------


def vllm_of(service: RunningService) -> int:
    """vLLM's process below the target's."""
    (child,) = psutil.Process(service.pid_of("target")).children()
    return child.pid


async def streams_while(service: RunningService, victim: int) -> list[str]:
    """Four streams' texts; the victim is killed while they flow."""
    begun = [asyncio.Event() for _ in range(4)]

    async def read(index: int) -> str:
        text = ""
        async for reply in service.stream(
            text_input=PROMPTS[index], max_tokens=MAX_TOKENS, stream=True,
            client_timeout_s=2 * BACK_S,
        ):  # fmt: skip
            text += reply.text
            begun[index].set()
        return text

    tasks = [asyncio.create_task(read(index)) for index in range(4)]
    await asyncio.gather(*(event.wait() for event in begun))
    os.kill(victim, signal.SIGKILL)
    return list(await asyncio.gather(*tasks))


@pytest.mark.parametrize("victim", ["vllm", "target", "draft"])
async def test_texts_go_on_when_a_process_is_killed(
    service: RunningService, right: list[str], victim: str
) -> None:
    role = "draft" if victim == "draft" else "target"
    old = service.pid_of(role)
    texts = await streams_while(service, vllm_of(service) if victim == "vllm" else old)
    await service.until_back_without(old)
    assert texts == right[:4]
    await service.until_speculates(PROMPTS[0])
    await service.until(lambda: service.metric("card_slots_in_use") == 0, "all slots free")


async def test_vllm_ends_with_its_service(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_service(tmp_path_factory.mktemp("ended"), SETTINGS) as running:
        process = psutil.Process(vllm_of(running))
    # What its dead parent cannot reap stays as a zombie where no init does.
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
