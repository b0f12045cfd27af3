"""What clients do to a server: read to the end, leave, read slowly or never, ask nonsense."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from card.speculation.pacing import PACINGS
from card_client import CardClient, CardError, GenerateRequest

ANSWER_S = 120.0
"""A request that has no end by then hangs."""
DECODINGS = (*PACINGS, None)
EXPECTED_REFUSALS = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
"""Codes that a sound request may get from a server under load."""

NONSENSE: tuple[dict[str, Any], ...] = (
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"top_p": 1.5},
    {"max_tokens": 0},
    {"text_input": ""},
    {"text_input": "x " * 20_000},
    {"beam_width": 4},
    {"decoding": "magic"},
    {"end_id": 1 << 30},
    {"stop_words": ["x" * 5000]},
    {"bad_words": [str(number) for number in range(300)]},
)


@dataclass
class Tally:
    """The result of a run; `failures` lists the errors."""

    outcomes: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Expected:
    """A request, and the target's own answer to it."""

    request: GenerateRequest
    text: str
    finish_reason: str | None

    @classmethod
    async def of(cls, client: CardClient, request: GenerateRequest) -> Expected:
        """Decode a request autoregressively. Raises `CardError`."""
        alone = replace(request, decoding="autoregressive")
        answer = await client.generate(alone, timeout_s=ANSWER_S)
        return cls(request, answer.text, answer.finish_reason)

    def as_drawn(self, draw: random.Random) -> GenerateRequest:
        """The request, decoded in any way."""
        return replace(self.request, decoding=draw.choice(DECODINGS))


class Crowd:
    """Clients that behave at random, each request after the other, until they are to stop."""

    def __init__(self, grpc: str, expected: Sequence[Expected], seed: int) -> None:
        self.tally = Tally()
        self._grpc, self._expected, self._seed = grpc, expected, seed
        self._stop = asyncio.Event()

    async def run(self, clients: int, stop: asyncio.Event) -> None:
        """`clients` of them at once, until `stop` is set and their last requests have ended."""
        self._stop = stop
        await asyncio.gather(*(self._client(number) for number in range(clients)))

    async def _client(self, number: int) -> None:
        draw = random.Random(f"{self._seed} {number}")
        async with CardClient(self._grpc) as client:
            while not self._stop.is_set():
                (behave,) = draw.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
                try:
                    outcome = await behave(self, client, draw.choice(self._expected), draw)
                except CardError as error:
                    outcome = error.code.lower()
                    if error.code not in EXPECTED_REFUSALS:
                        self.tally.failures.append(f"{behave.__name__}: {error}")
                self.tally.outcomes[outcome] += 1

    async def _pause(self, seconds: float) -> None:
        """Wait, but not once all are to stop."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    # --- behaviours ---------------------------------------------------------------------------

    async def _read(
        self, client: CardClient, expected: Expected, draw: random.Random, slowest_s: float = 0.0
    ) -> str:
        request, text, finish_reason = expected.as_drawn(draw), "", None
        pause_s = draw.uniform(0.0, slowest_s)
        async with aclosing(client.stream(request, timeout_s=ANSWER_S)) as stream:
            async for delta in stream:
                text, finish_reason = text + delta.text, delta.finish_reason
                await self._pause(pause_s)
        self.tally.compared += 1
        if (text, finish_reason) != (expected.text, expected.finish_reason):
            self.tally.failures.append(
                f"another text than its reference: {_shown(request)} gave {text!r} "
                f"({finish_reason}) instead of {expected.text!r} ({expected.finish_reason})"
            )
        return "read"

    async def _read_slowly(self, _: CardClient, expected: Expected, draw: random.Random) -> str:
        # A connection with a window of its own, which fills up.
        async with CardClient(self._grpc) as own:
            await self._read(own, expected, draw, slowest_s=0.5)
        return "read slowly"

    async def _leave(self, client: CardClient, expected: Expected, draw: random.Random) -> str:
        """Before anything came, behind a few deltas, or long after reading has ended."""
        deltas = draw.randrange(5)
        async with aclosing(client.stream(expected.as_drawn(draw), timeout_s=ANSWER_S)) as stream:
            first = asyncio.ensure_future(anext(stream, None))
            await asyncio.wait({first}, timeout=None if deltas else draw.uniform(0, 0.1))
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
                return "left early"
            for _ in range(deltas):
                if await anext(stream, None) is None:
                    break
            await self._pause(draw.choice([0.0, 5.0]))
        return "left"

    async def _ask_nonsense(
        self, client: CardClient, expected: Expected, draw: random.Random
    ) -> str:
        wrong = draw.choice(NONSENSE)
        try:
            await client.generate(replace(expected.request, **wrong), timeout_s=ANSWER_S)
        except CardError as error:
            if error.code != "INVALID_ARGUMENT":
                raise
            return "refused"
        self.tally.failures.append(f"{wrong!r:.200} was answered")
        return "nonsense answered"

    async def _hurry(self, client: CardClient, expected: Expected, draw: random.Random) -> str:
        await client.generate(expected.request, timeout_s=draw.uniform(0.01, 0.5))
        return "in time"


Behaviour = Callable[[Crowd, CardClient, Expected, random.Random], Awaitable[str]]

BEHAVIOURS: dict[Behaviour, float] = {
    Crowd._read: 0.64,
    Crowd._leave: 0.16,
    Crowd._ask_nonsense: 0.10,
    Crowd._read_slowly: 0.05,
    Crowd._hurry: 0.05,
}
"""What a client does next, and how often."""


def _shown(request: GenerateRequest) -> str:
    said = (f"{name}={value!r:.200}" for name, value in vars(request).items() if value is not None)
    return ", ".join(said)
