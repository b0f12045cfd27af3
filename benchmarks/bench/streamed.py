"""One text as a client of a server asks for it and sees it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from bench.activity import DraftActivity
from bench.measurement import Measurement, Task
from card.cache import SlotCounters
from card_client import Delta, GenerateRequest


@dataclass(frozen=True)
class Streamed:
    """What the client saw.

    seconds        from the request to the last text; first_token_s: to the first
    """

    text: str
    generated: int
    seconds: float
    first_token_s: float

    def measured(self, counters: SlotCounters, draft: DraftActivity) -> Measurement:
        """With what the server counted of the text."""
        return Measurement(
            text=self.text,
            tokens=None,
            generated=self.generated,
            seconds=self.seconds,
            first_token_s=self.first_token_s,
            steps=counters.steps,
            drafted=counters.drafted,
            accepted=counters.accepted,
            queries=counters.queries,
            hits=counters.hits,
            draft=draft,
        )


def request_of(task: Task, decoding: str) -> GenerateRequest:
    """It begins behind nothing that is kept."""
    return GenerateRequest(
        task.prompt.text,
        task.max_tokens,
        temperature=task.temperature,
        seed=task.seed,
        end_id=-1,
        decoding=decoding,
        skip_reading_prefix_cache=True,
        return_num_output_tokens=True,
    )


async def streamed(deltas: AsyncGenerator[Delta, None]) -> Streamed:
    """Read a stream whose request is sent when its first delta is asked for."""
    pieces: list[str] = []
    generated, first_token_s, seconds = 0, 0.0, 0.0
    started = time.perf_counter()
    async with aclosing(deltas):
        async for delta in deltas:
            seconds = time.perf_counter() - started
            first_token_s = first_token_s or seconds
            pieces.append(delta.text)
            generated = delta.num_output_tokens or 0
    return Streamed("".join(pieces), generated, seconds, first_token_s)
