"""Several texts for one request: generated side by side, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from card_gateway.generation import Piece

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
