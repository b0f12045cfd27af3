"""The texts of one request, piece by piece. The server stops them when the client leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from card_client import CardClient, CardError, GenerateRequest
from card_gateway.reading import SMALL_BYTES, Workers
from card_gateway.tools.calls import Part


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a prompt or a text.

    log_prob  natural logarithm of its probability by the model's own logits; None for the first
              token of a prompt
    top       the likeliest ids at its position and their log-probabilities, likeliest first
    """

    token: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, told: dict[str, Any]) -> ScoredToken:
        return cls(told["id"], told["logprob"], tuple((token, lp) for token, lp in told["top"]))


def read_details(text: str | None) -> dict[str, Any]:
    """The output `details` of one response as fields of `Piece`."""
    told = json.loads(text or "{}")
    return {
        "prompt": tuple(map(ScoredToken.of, told.get("prompt", ()))),
        "tokens": tuple(map(ScoredToken.of, told.get("tokens", ()))),
        "cached_tokens": told.get("cached_tokens", 0),
        "trace": tuple(told.get("trace", ())),
    }


Result = TypeVar("Result")

_MOST_SCORED = 64


@dataclass(frozen=True)
class Piece:
    """The next piece of a text; counts are totals so far.

    index          of the text among those of its request
    finish_reason  None until the last piece
    steps          forward passes of the target
    drafted        candidates that were verified
    accepted       those of them that became part of the text
    foreign        those of these that the target would not have chosen: 0 unless `acceptance` is a
                   rule that changes the text
    prompt         the prompt's tokens, once; empty unless asked for
    tokens         those of this piece; empty unless log-probabilities are asked for
    parts          text and calls that are certain now; empty unless functions may be called
    trace          events of speculation; empty unless asked for
    cached_tokens  prompt tokens with reused KV; known at the text's end
    """

    text: str = ""
    index: int = 0
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    foreign: int = 0
    prompt: tuple[ScoredToken, ...] = ()
    tokens: tuple[ScoredToken, ...] = ()
    trace: tuple[dict[str, Any], ...] = ()
    cached_tokens: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def is_large(self) -> bool:
        """Whether a worker thread makes its JSON. The JSON of a long prompt with log-probabilities
        has megabytes."""
        return len(self.prompt) + len(self.tokens) > _MOST_SCORED

    @property
    def says_something(self) -> bool:
        """False for the empty responses that the server sends while a request waits for a slot or
        its prompt is read."""
        return bool(
            self.text or self.prompt or self.completion_tokens or self.finish_reason or self.trace
        )

    def __add__(self, later: Piece) -> Piece:
        """Both as one piece."""
        return replace(
            later,
            text=self.text + later.text,
            tokens=self.tokens + later.tokens,
            prompt=self.prompt + later.prompt,
            parts=self.parts + later.parts,
        )


async def generate(
    client: CardClient,
    workers: Workers,
    request: GenerateRequest,
    *,
    deadline_s: float,
    request_id: str,
    index: int = 0,
    headers: Mapping[str, str] | None = None,
) -> AsyncGenerator[Piece, None]:
    """Stream the text. Closing the generator cancels the request. Raises `CardError`.

    deadline_s  of the whole answer, on the clock `time.monotonic`
    """
    timeout_s = deadline_s - time.monotonic()
    if timeout_s <= 0:
        raise CardError("DEADLINE_EXCEEDED", "the time of this answer is over (--timeout-s)")
    stream = client.stream(request, timeout_s=timeout_s, request_id=request_id, headers=headers)
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            told = delta.details or ""
            details = await workers.run_if_large(len(told) > SMALL_BYTES, read_details, told)
            yield Piece(
                delta.text,
                index,
                delta.finish_reason or None,
                delta.num_input_tokens or 0,
                delta.num_output_tokens or 0,
                delta.target_steps or 0,
                delta.total_draft_tokens or 0,
                delta.total_accepted_draft_tokens or 0,
                delta.foreign_tokens or 0,
                **details,
            )


async def prompt_alone(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """The pieces without generated tokens. Closes `pieces`."""
    async with aclosing(pieces):
        async for piece in pieces:
            yield replace(piece, text="", tokens=(), completion_tokens=0)


async def begin(pieces: AsyncGenerator[Piece, None]) -> Piece:
    """The first piece that is not empty. Raises `CardError`, also when the request waited in
    vain."""
    while not (piece := await anext(pieces)).says_something:
        pass
    return piece


async def gather(pieces: AsyncGenerator[Piece, None]) -> list[Piece]:
    """Each whole text as one piece, by its index.

    They are streamed from the server all the same: only between responses does a server notice that
    its client has left.
    """
    whole: dict[int, Piece] = {}
    async with aclosing(pieces):
        async for piece in pieces:
            before = whole.get(piece.index)
            whole[piece.index] = piece if before is None else before + piece
    return [whole[index] for index in sorted(whole)]


async def unless_client_leaves(request: Request, work: Awaitable[Result]) -> Result:
    """Do the work, or cancel it and raise `ClientDisconnect` when the client leaves first.

    The body of `request` must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.wait({working, leaving})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Pieces = AsyncGenerator[Piece, None]


async def side_by_side(texts: Sequence[Pieces], at_once: int, per_prompt: int = 1) -> Pieces:
    """The pieces of all texts as they come, `at_once` texts being generated at most.

    per_prompt  texts of one prompt, which follow each other: all wait until the first of them has
                begun, for the server then keeps what it read of the prompt

    Raises what the first text that fails raises. However it ends, all texts are closed.
    """
    arrived: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue(maxsize=at_once)
    turns = asyncio.Semaphore(at_once)
    begun = [asyncio.Event() for _ in range(0, len(texts), per_prompt)]

    async def follow(place: int, text: Pieces) -> None:
        prompt_read = begun[place // per_prompt]
        async with aclosing(text):
            try:
                if place % per_prompt:
                    await prompt_read.wait()
                async with turns:
                    async for piece in text:
                        if piece.says_something:
                            prompt_read.set()
                        await arrived.put(piece)
            except Exception as error:
                await arrived.put(error)  # the reader of the pieces raises it
            else:
                await arrived.put(None)
            finally:
                prompt_read.set()

    tasks = [asyncio.ensure_future(follow(*text)) for text in enumerate(texts)]
    try:
        left = len(tasks)
        while left:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def best(texts: Sequence[Piece], candidates: int, answers: int) -> list[Piece]:
    """The `answers` best of each prompt's `candidates` texts, by mean log-probability."""
    chosen = []
    for prompt in range(len(texts) // candidates):
        group = texts[prompt * candidates : (prompt + 1) * candidates]
        ranked = sorted(group, key=_mean_log_prob, reverse=True)[:answers]
        chosen += [
            replace(text, index=prompt * answers + place) for place, text in enumerate(ranked)
        ]
    return chosen


def _mean_log_prob(text: Piece) -> float:
    values = [token.log_prob for token in text.tokens if token.log_prob is not None]
    return sum(values) / len(values) if values else 0.0
