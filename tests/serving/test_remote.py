"""Devices that draft for their own texts: right ones save passes, others cost themselves alone."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest
from recorded_draft import Recorded
from running_service import BACK_S, RunningService, StartService
from tritonclient.grpc.aio import InferenceServerClient

from card_client import CardClient, CardError, GenerateRequest
from card_client.edge import LONGEST_CHAIN, stream
from card_client.wire import Draft, encode_draft

PROMPTS = (
    "def fibonacci(n):",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\ndef walk(path):",
    "def merge(left, right):\n    result = []\n",
    "for index in range(10):\n",
    "def is_prime(number: int) -> bool:\n",
    "with open(path) as file:\n",
    "class Queue:\n    items = []\n",
)
MAX_TOKENS = 64
SAMPLINGS: tuple[dict[str, float], ...] = ({}, {"temperature": 0.8, "seed": 11})


@pytest.fixture(scope="module")
def service(start_service: StartService) -> Iterator[RunningService]:
    """Nothing is guessed from the text, so that candidates of these requests are the devices'."""
    with start_service({"speculation": {"ngram_tokens": 0}}) as running:
        yield running


def request_for(prompt: str, **inputs: object) -> GenerateRequest:
    asked = {"max_tokens": MAX_TOKENS, "end_id": -1, "return_perf_metrics": True, **inputs}
    return GenerateRequest(prompt, **asked)  # type: ignore[arg-type]


@dataclass
class Text:
    """What came of a request; the counts are the server's."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    accepted: int = 0
    steps: int = 0


async def read(deltas: AsyncIterator[object]) -> Text:
    got = Text()
    async for delta in deltas:
        got.text += delta.text  # type: ignore[attr-defined]
        got.ids += delta.output_ids  # type: ignore[attr-defined]
        got.accepted = delta.total_accepted_draft_tokens  # type: ignore[attr-defined]
        got.steps = delta.target_steps  # type: ignore[attr-defined]
    return got


async def alone(client: CardClient, prompt: str, **inputs: object) -> Text:
    """What the target writes without candidates; the key lets the server tell the tokens."""
    request = request_for(
        prompt, decoding="autoregressive", draft_key=secrets.token_hex(16), **inputs
    )
    return await read(client.stream(request))


class Lying:
    """Drafts whatever comes."""

    end_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._chance = random.Random(7)

    def tokens(self, text: str) -> list[int]:
        return [0]

    def next_token(self, tokens: Sequence[int]) -> int:
        return self._chance.randrange(3072)


# --- the text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", SAMPLINGS, ids=["greedy", "seeded"])
async def test_a_device_that_drafts_gets_the_same_text_in_fewer_passes(
    service: RunningService, inputs: dict[str, object]
) -> None:
    async with CardClient(service.grpc) as client:
        right = await alone(client, PROMPTS[0], **inputs)
        request = request_for(PROMPTS[0], decoding="draft_then_verify", **inputs)
        device = Recorded(right.ids, share_wrong=0.1)
        got = await read(stream(client, request, device, ahead=8, whole=True))
    assert (got.text, got.ids) == (right.text, right.ids)
    assert got.accepted > MAX_TOKENS // 2
    assert got.steps < MAX_TOKENS // 2


@pytest.mark.parametrize("decoding", ["card", "draft_then_verify"])
@pytest.mark.parametrize("inputs", SAMPLINGS, ids=["greedy", "seeded"])
async def test_a_device_that_lies_changes_no_text(
    service: RunningService, decoding: str, inputs: dict[str, object]
) -> None:
    async with CardClient(service.grpc) as client:
        rights = [await alone(client, prompt, **inputs) for prompt in PROMPTS[:2]]
        liar, other = await asyncio.gather(
            read(stream(client, request_for(PROMPTS[0], decoding=decoding, **inputs), Lying())),
            read(client.stream(request_for(PROMPTS[1], **inputs))),
        )
    assert [liar.text, other.text] == [right.text for right in rights]


async def test_a_device_that_vanishes_leaves_its_slot_and_nothing_else(
    service: RunningService,
) -> None:
    async with CardClient(service.grpc) as client:
        right = await alone(client, PROMPTS[1])
        vanishing = CardClient(service.grpc)
        request = request_for(PROMPTS[0], decoding="draft_then_verify")
        async with aclosing(stream(vanishing, request, Lying())) as deltas:
            await anext(deltas)
            await vanishing.close()
            with pytest.raises(CardError, match="closed meanwhile"):
                await anext(deltas)
        assert (await read(client.stream(request_for(PROMPTS[1])))).text == right.text
    await service.until(lambda: service.metric("card_slots_in_use") == 0, "all slots are free")


async def test_a_device_that_floods_and_breaks_every_rule_gets_its_text_and_so_do_others(
    service: RunningService,
) -> None:
    key = secrets.token_hex(16)

    async def messages() -> AsyncIterator[dict[str, object]]:
        chance = random.Random(3)
        for _ in range(4000):
            position = chance.choice([0, 1, 5, 10**6, -3])
            count = chance.choice([1, LONGEST_CHAIN, 5000])
            draft = Draft(position, tuple(chance.choices([0, 5, 10**9, -7], k=count)))
            yield {"model_name": "remote", "inputs": encode_draft(key, draft)}

    async def flood() -> int:
        """Without waiting for an answer; how many came all the same."""
        async with InferenceServerClient(service.grpc) as flooding:
            return len([answer async for answer in flooding.stream_infer(messages())])

    async with CardClient(service.grpc) as client:
        rights = [await alone(client, prompt) for prompt in PROMPTS[:4]]
        flooding = request_for(PROMPTS[0], draft_key=key)
        honest = Recorded(rights[1].ids, 0.1)
        floods = asyncio.create_task(flood())
        texts = await asyncio.gather(
            read(client.stream(flooding)),
            read(stream(client, request_for(PROMPTS[1]), honest)),
            *(read(client.stream(request_for(prompt))) for prompt in PROMPTS[2:4]),
        )
        assert [got.text for got in texts] == [right.text for right in rights]
        assert await floods == 4000
    assert service.health["state"] == "ready"


@pytest.mark.parametrize(
    ("model", "blow"),
    [("remote", signal.SIGKILL), ("remote", signal.SIGSTOP), ("draft", signal.SIGKILL)],
)
async def test_what_takes_drafts_may_die_and_the_text_goes_on(
    service: RunningService, model: str, blow: signal.Signals
) -> None:
    victim = service.pid_of(model)
    async with CardClient(service.grpc) as client:
        right = await alone(client, PROMPTS[0])
        request = request_for(PROMPTS[0])
        async with aclosing(stream(client, request, Recorded(right.ids, 0.1))) as deltas:
            beginning = (await anext(deltas)).text
            os.kill(victim, blow)
            rest = await read(deltas)
        assert beginning + rest.text == right.text
        await service.until(lambda: service.is_back_without(victim), "it is back", BACK_S)
        again = await read(
            stream(
                client,
                request_for(PROMPTS[0], decoding="draft_then_verify"),
                Recorded(right.ids, 0.1),
                whole=True,
            )
        )
    assert (again.text, again.accepted > MAX_TOKENS // 4) == (right.text, True)
