"""What clients do to a server: read to the end, leave, read slowly or never, ask nonsense."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from card.speculation.pacing import PACINGS
from card_client import CardClient, CardError, Delta, GenerateRequest
from loading.supervised import open_local

ANSWER_S = 120.0
"""A request that has no end by then hangs."""
DECODINGS = (*PACINGS, None)
EXPECTED_REFUSALS = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
"""Codes that a sound request may get from a server under load."""

NONSENSE: tuple[dict[str, Any], ...] = (
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"top_p": 1.5},
    {"top_k": -1},
    {"max_tokens": 0},
    {"max_tokens": 1 << 30},
    {"text_input": ""},
    {"text_input": "x " * 20_000},
    {"beam_width": 4},
    {"decoding": "magic"},
    {"end_id": 1 << 30},
    {"stop_words": ["x" * 5000]},
    {"bad_words": [str(number) for number in range(300)]},
    {"repetition_penalty": 0.0},
)


@dataclass
class Tally:
    """What happened. `failures` say what should not have."""

    outcomes: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Expected:
    """A request and what the target alone answers to it."""

    request: GenerateRequest
    text: str
    finish_reason: str | None


async def reference(client: CardClient, request: GenerateRequest) -> Expected:
    """Decode a request autoregressively. Raises `CardError`."""
    answer = await client.generate(replace(request, decoding="autoregressive"), timeout_s=ANSWER_S)
    return Expected(request, answer.text, answer.finish_reason)


class Crowd:
    """Clients that behave at random, each request after the other, until told to stop."""

    def __init__(self, grpc: str, http: str, expected: Sequence[Expected], seed: int) -> None:
        self.tally = Tally()
        self._grpc = grpc
        self._http = http
        self._expected = expected
        self._seed = seed
        self._stop = asyncio.Event()

    async def run(self, clients: int, stop: asyncio.Event) -> None:
        """`clients` of them at once, until `stop` is set and their last requests have ended."""
        self._stop = stop
        await asyncio.gather(*(self._client(number) for number in range(clients)))

    async def _client(self, number: int) -> None:
        random_ = random.Random(f"{self._seed} {number}")
        async with CardClient(self._grpc) as client:
            while not self._stop.is_set():
                (behave,) = random_.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
                expected = random_.choice(self._expected)
                try:
                    outcome = await behave(self, client, expected, random_)
                except CardError as error:
                    outcome = error.code.lower()
                    if error.code not in EXPECTED_REFUSALS:
                        self._fail(f"{behave.__name__}: {error}")
                except OSError as error:  # of HTTP: the server is gone
                    self._fail(f"{behave.__name__}: {error}")
                    return
                self.tally.outcomes[outcome] += 1

    async def _pause(self, seconds: float) -> None:
        """Who is slow hurries once all are to stop."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def _fail(self, what: str) -> None:
        self.tally.failures.append(what)

    # --- behaviours ---------------------------------------------------------------------------

    async def _read_all(
        self, client: CardClient, expected: Expected, random_: random.Random
    ) -> str:
        request = replace(expected.request, decoding=random_.choice(DECODINGS))
        if random_.random() < 0.2:
            whole = await client.generate(request, timeout_s=ANSWER_S)
            self._compare(expected, request, whole.text, whole.finish_reason)
        else:
            await self._stream(client, expected, request, pause_s=0.0)
        return "completed"

    async def _read_slowly(
        self, client: CardClient, expected: Expected, random_: random.Random
    ) -> str:
        request = replace(expected.request, decoding=random_.choice(DECODINGS))
        async with CardClient(self._grpc) as own:  # a connection whose window fills up alone
            await self._stream(own, expected, request, pause_s=random_.uniform(0.05, 0.5))
        return "read slowly"

    async def _read_nothing(
        self, client: CardClient, expected: Expected, random_: random.Random
    ) -> str:
        async with (
            CardClient(self._grpc) as own,
            aclosing(own.stream(expected.request)) as deltas,
        ):
            await anext(deltas)
            await self._pause(random_.uniform(1, 10))
        return "read nothing"

    async def _leave(self, client: CardClient, expected: Expected, random_: random.Random) -> str:
        request = replace(expected.request, decoding=random_.choice(DECODINGS))
        deltas = random_.randrange(5)
        async with aclosing(client.stream(request, timeout_s=ANSWER_S)) as stream:
            if deltas == 0:  # before anything came
                first = asyncio.ensure_future(anext(stream, None))
                await asyncio.wait({first}, timeout=random_.uniform(0, 0.1))
                first.cancel()
                await asyncio.wait({first})
            async for _ in stream:
                deltas -= 1
                if deltas <= 0:
                    break
        return "left"

    async def _ask_nonsense(
        self, client: CardClient, expected: Expected, random_: random.Random
    ) -> str:
        wrong = random_.choice(NONSENSE)
        try:
            await client.generate(replace(expected.request, **wrong), timeout_s=ANSWER_S)
        except CardError as error:
            if error.code != "INVALID_ARGUMENT":
                raise
            return "refused"
        self._fail(f"{_shown(wrong)} was answered")
        return "nonsense answered"

    async def _hurry(self, client: CardClient, expected: Expected, random_: random.Random) -> str:
        limit_s = random_.uniform(0.01, 0.5)
        try:
            await client.generate(expected.request, timeout_s=limit_s)
        except CardError as error:
            if error.code not in EXPECTED_REFUSALS:
                raise
            return "timed out"
        return "in time"

    async def _by_http(self, client: CardClient, expected: Expected, random_: random.Random) -> str:
        request = replace(expected.request, stream=False)
        body = {name: value for name, value in vars(request).items() if value is not None}
        body["timeout"] = int(ANSWER_S * 1e6)  # microseconds
        status, answer = await asyncio.to_thread(_post, self._http, body)
        if status == 200:
            self._compare(expected, request, answer["text_output"], answer["finish_reason"])
            return "completed by HTTP"
        if not any(code in answer["error"] for code in EXPECTED_REFUSALS):
            self._fail(f"HTTP {status}: {answer['error']}")
        return f"HTTP {status}"

    # --- comparison ---------------------------------------------------------------------------

    async def _stream(
        self, client: CardClient, expected: Expected, request: GenerateRequest, pause_s: float
    ) -> None:
        deltas: list[Delta] = []
        async with aclosing(client.stream(request, timeout_s=ANSWER_S)) as stream:
            async for delta in stream:
                deltas.append(delta)
                if pause_s:
                    await self._pause(pause_s)
        text = "".join(delta.text for delta in deltas)
        self._compare(expected, request, text, deltas[-1].finish_reason)

    def _compare(
        self, expected: Expected, request: GenerateRequest, text: str, finish_reason: str | None
    ) -> None:
        self.tally.compared += 1
        if (text, finish_reason) != (expected.text, expected.finish_reason):
            self._fail(
                f"another text than its reference: {_shown(vars(request))} gave {text!r} "
                f"({finish_reason}) instead of {expected.text!r} ({expected.finish_reason})"
            )


Behaviour = Callable[[Crowd, CardClient, Expected, random.Random], Awaitable[str]]

BEHAVIOURS: dict[Behaviour, float] = {
    Crowd._read_all: 0.58,
    Crowd._leave: 0.12,
    Crowd._ask_nonsense: 0.10,
    Crowd._by_http: 0.06,
    Crowd._read_slowly: 0.05,
    Crowd._hurry: 0.05,
    Crowd._read_nothing: 0.04,
}
"""What a client does next, and how often."""


def _post(address: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Ask over HTTP, blocking: (status, JSON)."""
    url = f"{address}/v2/models/ensemble/generate"
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with open_local(request, 2 * ANSWER_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def _shown(fields: dict[str, Any]) -> str:
    said = (f"{name}={value!r:.200}" for name, value in fields.items() if value is not None)
    return ", ".join(said)
