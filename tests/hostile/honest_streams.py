"""Clients that must not notice an attack: eight streams of known texts, and probes beside them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
from hostile_bodies import MODEL

ANSWER_S = 120.0
_TOKENS = 96
_PROBE_S = 0.1
_FILLING = 16
"""Prompts of 600 tokens: one a slot, and together more than `cache.kept_tokens`."""
_STREAM = {"stream": True, "ignore_eos": True, "stream_options": {"continuous_usage_stats": True}}


class HonestError(RuntimeError):
    """An honest request was not answered as it must be."""


Events = list[tuple[float, float]]
"""Values with the time, of `time.monotonic`, at which they were seen."""


@dataclass
class Seen:
    """What honest clients met.

    tokens   more tokens of a stream
    gaps     seconds in which a stream said nothing, its first token included
    healths  seconds until /health answered; infinite where it did not say 200
    guides   seconds until a guide that is new to the server was answered
    wrong    what must not happen, in words, with the time
    """

    tokens: Events = field(default_factory=list)
    gaps: Events = field(default_factory=list)
    healths: Events = field(default_factory=list)
    guides: Events = field(default_factory=list)
    wrong: list[tuple[float, str]] = field(default_factory=list)


class Honest:
    """So many streams, each one text after another."""

    def __init__(self, url: str, streams: int) -> None:
        self.seen = Seen()
        self._url = url
        self._wishes = [_wish(number) for number in range(streams)]
        self._guides = 0

    def _open(self) -> httpx.AsyncClient:
        # Reading certificates for every probe would make the probes themselves late.
        return httpx.AsyncClient(
            base_url=self._url, timeout=ANSWER_S, trust_env=False, verify=False
        )

    async def fill(self) -> None:
        """Send long prompts at once, so that slots and kept text hold all the memory they may.

        Raises `HonestError`.
        """
        async with self._open() as client:
            wishes = [
                {"model": MODEL, "prompt": [number, *range(200, 800)], "max_tokens": 1}
                for number in range(200, 200 + _FILLING)
            ]
            answers = (client.post("/v1/completions", json=wish) for wish in wishes)
            try:
                for answer in await asyncio.gather(*answers):
                    answer.raise_for_status()
            except httpx.HTTPError as error:
                raise HonestError(f"a prompt failed before any attack: {error!r}") from error

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Learn every text while nothing disturbs, then let all go on. Raises `HonestError`."""
        async with self._open() as client:
            try:
                right = [await self._text(client, wish) for wish in self._wishes]
            except httpx.HTTPError as error:
                raise HonestError(f"a text failed before any attack: {error!r}") from error
            pairs = zip(self._wishes, right, strict=True)
            loops = [self._repeat(0.0, self._compare, client, *pair) for pair in pairs]
            loops += [self._repeat(_PROBE_S, self._ask_health)]
            loops += [self._repeat(1.0, self._ask_guide, client)]
            tasks = [asyncio.create_task(loop) for loop in loops]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(
        self, pause_s: float, act: Callable[..., Awaitable[None]], *arguments: Any
    ) -> None:
        while True:
            try:
                await act(*arguments)
            except (httpx.HTTPError, HonestError) as error:
                self.seen.wrong.append((time.monotonic(), f"{type(error).__name__}: {error}"))
                await asyncio.sleep(_PROBE_S)
            await asyncio.sleep(pause_s)

    async def _compare(self, client: httpx.AsyncClient, wish: dict[str, Any], right: str) -> None:
        text = await self._text(client, wish)
        if text != right:
            raise HonestError(f"a text is {text!r} instead of {right!r}")

    async def _text(self, client: httpx.AsyncClient, wish: dict[str, Any]) -> str:
        text, known, before_s, finished = "", 0, time.monotonic(), False
        async with client.stream("POST", "/v1/completions", json=wish) as answer:
            if answer.status_code != 200:
                raise HonestError(f"{answer.status_code} {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now_s, told = time.monotonic(), json.loads(line.removeprefix("data: "))
                if "error" in told:
                    raise HonestError(str(told["error"]))
                tokens = told["usage"]["completion_tokens"]
                self.seen.gaps.append((now_s, now_s - before_s))
                self.seen.tokens.append((now_s, tokens - known))
                before_s, known = now_s, tokens
                text += "".join(choice["text"] for choice in told["choices"])
                finished |= any(choice["finish_reason"] for choice in told["choices"])
        if not finished:
            raise HonestError("a stream ended before its text")
        return text

    async def _ask_health(self) -> None:
        """On a connection of its own, as the kubelet does."""
        began_s, said = time.monotonic(), 0
        try:
            async with self._open() as client:
                said = (await client.get("/health")).status_code
        finally:
            now_s = time.monotonic()
            taken_s = now_s - began_s if said == 200 else float("inf")
            self.seen.healths.append((now_s, taken_s))

    async def _ask_guide(self, client: httpx.AsyncClient) -> None:
        self._guides += 1
        guide, began_s = f"(left|right|number {self._guides})", time.monotonic()
        wish = {"model": MODEL, "prompt": "Say: ", "max_tokens": 16, "guided_regex": guide}
        answer = await client.post("/v1/completions", json=wish)
        self.seen.guides.append((time.monotonic(), time.monotonic() - began_s))
        if answer.status_code != 200 or not re.fullmatch(
            guide, answer.json()["choices"][0]["text"]
        ):
            raise HonestError(f"guide {guide}: {answer.status_code} {answer.text[:150]!r}")


def _wish(number: int) -> dict[str, Any]:
    """A request that always has the same text: greedy, sampled with a seed, or guided."""
    kinds: tuple[dict[str, Any], ...] = (
        {"prompt": f"Count from {number}: {number}, {number + 1},", "temperature": 0},
        {"prompt": f"A story of {number + 2} ships:", "temperature": 0.8, "seed": number},
        {"prompt": "def fibonacci(n):", "temperature": 0.5, "seed": number},
        {"prompt": "Words: ", "temperature": 1, "seed": number, "guided_regex": "([a-z]{2,9} )+"},
    )
    return {"model": MODEL, "max_tokens": _TOKENS, **kinds[number % len(kinds)], **_STREAM}
