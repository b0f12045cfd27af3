"""A device is a bounded way ahead of its text, follows it, and sends what it stands behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from queue import Queue
from typing import Any

import pytest
from client_double import Request, Responses, TritonDouble, refusal, response
from typer.testing import CliRunner

from card_client import CardClient, GenerateRequest
from card_client.cli import app
from card_client.edge import Device, TransformersModel, stream
from card_client.wire import Delta, Draft

PROMPT = [100, 101]
PATIENCE_S = 20.0


class Counting:
    """Drafts how long its context is: 2, 3, 4, ... behind the prompt."""

    end_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.contexts: list[list[int]] = []

    def tokens(self, text: str) -> list[int]:
        return PROMPT

    def next_token(self, tokens: Sequence[int]) -> int:
        self.contexts.append(list(tokens))
        return len(tokens)


async def until_at_rest(device: Device, model: Counting, drafted: int) -> None:
    """Until so many tokens were drafted in all and the device waits for the text."""

    async def turns() -> None:
        while len(model.contexts) < drafted:
            await asyncio.sleep(0)

    drafting = asyncio.create_task(device.draft())
    await asyncio.wait_for(turns(), PATIENCE_S)
    done, _ = await asyncio.wait({drafting}, timeout=0.05)
    assert not done
    drafting.cancel()


async def first(device: Device) -> Draft:
    return await asyncio.wait_for(anext(device.drafts()), PATIENCE_S)


async def test_it_is_never_further_ahead_than_it_may_be_and_follows_what_is_committed() -> None:
    model = Counting()
    device = Device(model, PROMPT, ahead=4)
    await until_at_rest(device, model, 4)
    assert len(model.contexts) == 4, "so far ahead of a text without a token"
    device.commit([2, 3])
    await until_at_rest(device, model, 6)
    assert await first(device) == Draft(2, (4, 5, 6, 7))
    assert len(model.contexts) == 6, "what was right is not drafted again"
    device.commit([4, 77])
    await until_at_rest(device, model, 10)
    assert await first(device) == Draft(4, (6, 7, 8, 9))
    assert model.contexts[6] == [*PROMPT, 2, 3, 4, 77], "behind what was wrong it drafts anew"


async def test_a_server_that_waits_gets_whole_chains_until_the_last_token() -> None:
    """Also what is left of one where nothing can be drafted any more."""
    device = Device(Counting(), PROMPT, max_tokens=8, ahead=3, whole=True)
    device.commit([2])
    sent: list[int] = []

    async def send() -> None:
        async for draft in device.drafts():
            sent.append(len(draft.tokens))
            device.commit(draft.tokens[:1])
            if device.position == 7:
                device.close()

    await asyncio.wait_for(asyncio.gather(send(), device.draft()), PATIENCE_S)
    assert sent == [3, 3, 3, 3, 2, 1]


# --- with the text that it is drafted for -------------------------------------------------------


def committed(tokens: Sequence[int], end: str = "") -> Any:
    details = json.dumps({"output_ids": list(tokens)})
    text = "".join(f"{token} " for token in tokens)
    return response(text_output=text, details=details, finish_reason=end)


def is_draft(request: Request) -> bool:
    return bool(request.model_name == "remote")


class Server:
    """Commits a token, and one more for each draft that comes, which it refuses all the same."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heard: Queue[None] = Queue()

    def answer(self, request: Request) -> Responses:
        if is_draft(request):
            self._heard.put(None)
            return [refusal("UNAVAILABLE: remote is not ready")]
        return self._text()

    def _text(self) -> Responses:
        yield committed([2])
        for token in range(3, self._most + 2):
            self._heard.get(timeout=PATIENCE_S)
            yield committed([token], "length" if token == self._most + 1 else "")


async def heard(client: CardClient, model: Counting, **more: Any) -> list[Delta]:
    request = GenerateRequest("x", 8, **more)
    return [delta async for delta in stream(client, request, model, ahead=3, timeout_s=PATIENCE_S)]


async def test_drafts_have_the_key_of_their_text_and_a_refused_one_is_no_error(
    triton: TritonDouble,
) -> None:
    triton.answer = Server(4).answer
    async with CardClient(triton.address) as client:
        deltas = await heard(client, Counting())
    assert "".join(delta.text for delta in deltas) == "2 3 4 5 "
    (text,) = (request for request in triton.requests if not is_draft(request))
    drafts = [request for request in triton.requests if is_draft(request)]
    keys = {raw_of(request, "draft_key")[4:] for request in (text, *drafts)}
    assert len(keys) == 1
    assert len(keys.pop()) == 32
    for sent in map(message_of, drafts):
        assert sent.tokens[0] == sent.position + 2


def test_command_when_most_drafts_are_refused_says_why_behind_the_text(
    triton: TritonDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformersModel, "load", lambda _: Counting())
    triton.answer = Server(4).answer
    draft = ["--draft", ".", "--url", triton.address]
    result = CliRunner().invoke(app, ["edge", "x", *draft])
    assert (result.exit_code, result.stdout) == (0, "2 3 4 5 ")
    wanted = "the server refused most drafts of this device: UNAVAILABLE: remote is not ready"
    assert result.stderr.splitlines()[-1] == wanted


def raw_of(request: Request, name: str) -> bytes:
    names = [tensor.name for tensor in request.inputs]
    return bytes(request.raw_input_contents[names.index(name)])


def message_of(request: Request) -> Draft:
    tokens = raw_of(request, "candidates")
    ids = tuple(int.from_bytes(tokens[at : at + 4], "little") for at in range(0, len(tokens), 4))
    return Draft(int.from_bytes(raw_of(request, "position"), "little"), ids)
