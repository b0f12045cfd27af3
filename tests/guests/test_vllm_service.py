"""The whole service with vLLM as the target's engine: the real vLLM, the real Triton.

The tests share one service; those that kill come last and leave it well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from guest_streams import PROMPTS, texts_while_killed
from running_service import Refused, RunningService, running_service
from vllm_requests import FIELDS, Tried, vllm_alone
from vllm_requests import MAX_TOKENS as TRIED_TOKENS
from vllm_service import MAX_TOKENS, SETTINGS, vllm_of

from card.serving.requests.vocabulary import Vocabulary
from card.serving.requests.wire import GenerateRequest, tensors


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


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.5}, "temperature is 2.5; it must be at most 2"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be from -2 to 2"),
    ({"guided_decoding_guide_type": "json", "min_tokens": 3}, "min_tokens is 3"),
    ({"decoding": "pearl"}, "vLLM's loop waits for no draft"),
    ({"top_p": 1.5}, "top_p is 1.5"),
    ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "("}, "guide"),
    *((dict(tried.fields), tried.refused) for tried in FIELDS.values() if tried.refused),
]


@pytest.mark.parametrize(("request_", "said"), REFUSED)
async def test_request_is_refused_by_name_when_vllm_cannot_keep_it(
    service: RunningService, request_: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=f"INVALID_ARGUMENT: .*{said}"):
        await service.ask(text_input=PROMPTS[0], max_tokens=4, **request_)


def tried_requests(service: RunningService) -> list[tuple[str, Tried]]:
    """Each field that vLLM honours, behind each prompt."""
    vocabulary = Vocabulary.load(service.settings.target.path)
    found = []
    for prompt in PROMPTS:
        ids = vocabulary.tokenizer.encode(prompt).ids
        depend = {
            "input_ids": Tried({"input_ids": ids}),
            "prediction": Tried({"prediction": np.array([[prompt.encode()]], object)}),
        }
        assert {one.name for one in tensors(GenerateRequest)} == {*FIELDS, *depend}
        tried = [*FIELDS.values(), *depend.values()]
        found += [(prompt, one) for one in tried if not one.refused]
    return found


async def test_each_text_is_vllms_when_two_hundred_requests_of_mixed_kinds_are_served(
    service: RunningService,
) -> None:
    """Beside texts that are compared: clients that leave, texts that take too long, refusals."""
    tried = tried_requests(service)
    wanted = vllm_alone(tried, service.settings.limits.context_tokens)
    at_once = asyncio.Semaphore(32)

    async def served(prompt: str, one: Tried) -> tuple[str, float]:
        asked: dict[str, Any] = {"max_tokens": TRIED_TOKENS, "text_input": prompt, **one.fields}
        if "input_ids" in one.fields:
            del asked["text_input"]
        async with at_once:
            replies = await service.ask(**asked)
        text = "".join(reply.text for reply in replies)
        return text, sum(value for one in replies for value in one.tensors["output_log_probs"])

    async def leaves(number: int) -> None:
        async with at_once:
            async for _ in service.stream(
                text_input=PROMPTS[number % 5], max_tokens=300, end_id=-1, stream=True
            ):
                break

    async def late(number: int) -> None:
        async with at_once:
            with pytest.raises(Refused, match="DEADLINE_EXCEEDED"):
                await service.ask(
                    text_input=PROMPTS[number % 5], max_tokens=300, timeout_us=100_000
                )

    async def wrong(request: dict[str, Any]) -> None:
        async with at_once:
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await service.ask(text_input=PROMPTS[0], **{"max_tokens": 4, **request})

    beside = [work(number) for number in range(8) for work in (leaves, late)]
    beside += [wrong(request) for request, _ in REFUSED]
    assert len(tried) + len(beside) >= 200
    found, _ = await asyncio.gather(
        asyncio.gather(*(served(*one) for one in tried)), asyncio.gather(*beside)
    )
    for (prompt, one), (text, total), (right, right_total) in zip(
        tried, found, wanted, strict=True
    ):
        assert text == prompt * one.echoes + right, one
        if right_total is not None:
            assert total == pytest.approx(right_total, abs=1e-2), one
    await service.until(lambda: service.metric("card_slots_in_use") == 0, "all slots free")


# --- kills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["vllm", "target", "draft"])
async def test_texts_go_on_when_a_process_is_killed(
    service: RunningService, right: list[str], victim: str
) -> None:
    role = "draft" if victim == "draft" else "target"
    old = service.pid_of(role)
    texts = await texts_while_killed(
        service,
        vllm_of(service, "target") if victim == "vllm" else old,
        streams=4,
        max_tokens=MAX_TOKENS,
    )
    await service.until_back_without(old)
    assert texts == right[:4]
    await service.until_speculates(PROMPTS[0])
    await service.until(lambda: service.metric("card_slots_in_use") == 0, "all slots free")


async def test_vllm_ends_with_its_service(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_service(tmp_path_factory.mktemp("ended"), SETTINGS) as running:
        process = psutil.Process(vllm_of(running, "target"))
    # What its dead parent cannot reap stays as a zombie where no init does.
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
