"""Our service on TensorRT-LLM: texts, streams, kills, metrics and speeds."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from bench.prompts import Prompt
from card_client import CardClient, CardError, GenerateRequest
from card_client.display import Tally
from loading.service import Service
from trtllm.report import Check, Speed

_ANSWER_S = 300.0
_BACK_S = 900.0
"""A large model takes minutes to load again."""
_LOOK_S = 0.1

AUTOREGRESSIVE, CARD = "autoregressive", "card"


class Served:
    """Asks a running service. `alone` is what the target writes without speculation."""

    def __init__(self, service: Service, prompts: list[Prompt], max_tokens: int) -> None:
        self._service = service
        self._prompts = prompts
        self._max_tokens = max_tokens
        self.alone: list[str] = []

    async def findings(self) -> AsyncIterator[Check | Speed]:
        """One after another, most wanted first. Kills come last."""
        alone = [await self._ask(prompt, AUTOREGRESSIVE) for prompt in self._prompts]
        self.alone = [answer.text for answer in alone]
        found = [await self._ask(prompt, CARD) for prompt in self._prompts]
        yield self._texts(found)
        yield _speed(f"ours, {AUTOREGRESSIVE}", alone)
        yield _speed(f"ours, {CARD}", found)
        together = await asyncio.gather(*(self._ask(prompt, CARD) for prompt in self._prompts))
        yield self._same("streams", [answer.text for answer in together], "at once")
        yield await self._metrics()
        for model in ("draft", "target"):
            yield await self._kill(model)
        yield await self._is_empty()

    def _texts(self, found: list[Tally]) -> Check:
        check = self._same("texts", [answer.text for answer in found], "with speculation")
        accepted = sum(answer.last.total_accepted_draft_tokens or 0 for answer in found)
        detail = f"{check.detail}; {accepted} candidates accepted"
        return Check(check.name, check.passed and accepted > 0, detail)

    def _same(self, name: str, texts: list[str], when: str) -> Check:
        differing = [
            prompt.id
            for prompt, text, alone in zip(self._prompts, texts, self.alone, strict=True)
            if text != alone
        ]
        if not differing:
            return Check(name, True, f"{len(texts)} texts {when} are those of the target alone")
        detail = f"{len(differing)} of {len(texts)} texts {when} differ from the target's alone "
        detail += f"({', '.join(differing)}): a tie that kernels of more rows break otherwise, "
        return Check(name, False, detail + "or a fault")

    async def _metrics(self) -> Check:
        """Check that the service counts generated and accepted tokens."""
        names = ("card_committed_tokens_total", "card_accepted_tokens_total")
        counted_s = await self._until(lambda: all(map(self._service.metric, names)))
        tokens, accepted = map(self._service.metric, names)
        detail = f"{tokens:.0f} tokens generated, {accepted:.0f} of them accepted candidates"
        return Check("metrics", counted_s is not None, detail)

    async def _kill(self, model: str) -> Check:
        """Its process is killed while texts flow: they are the same, and it is back."""
        name = f"killed {model}"
        victim = self._service.processes()[model]
        asked = [asyncio.create_task(self._ask(prompt, CARD)) for prompt in self._prompts]
        while not (self._service.metric("card_slots_in_use") or all(t.done() for t in asked)):
            await asyncio.sleep(_LOOK_S)
        os.kill(victim, signal.SIGKILL)
        try:
            answers = await asyncio.gather(*asked)
        except CardError as error:
            await asyncio.gather(*asked, return_exceptions=True)
            return Check(name, False, f"a stream ended: {error}")
        check = self._same(
            name, [answer.text for answer in answers], f"while the {model} was killed"
        )
        back_s = await self._until(lambda: self._is_back_without(model, victim))
        if back_s is None:
            return Check(name, False, f"{check.detail}; not back after {_BACK_S:.0f} s")
        return Check(name, check.passed, f"{check.detail}; back after {back_s:.0f} s")

    def _is_back_without(self, model: str, victim: int) -> bool:
        try:
            health = self._service.health
        except OSError:  # the server starts again
            return False
        pid = health.get("models", {}).get(model, {}).get("pid")
        return health.get("state") == "ready" and pid not in (victim, None)

    async def _is_empty(self) -> Check:
        empty = await self._until(lambda: self._service.busy() == (0, 0)) is not None
        detail = "all slots are free again" if empty else "a slot is in use without a request"
        return Check("nothing left behind", empty, detail)

    async def _until(self, holds: Callable[[], bool]) -> float | None:
        """Seconds until it holds; None: it does not."""
        started = time.monotonic()
        while not holds():
            if time.monotonic() - started > _BACK_S:
                return None
            await asyncio.sleep(_LOOK_S)
        return time.monotonic() - started

    async def _ask(self, prompt: Prompt, decoding: str) -> Tally:
        """Stream one greedy text. Raises `CardError`."""
        request = GenerateRequest(
            prompt.text, self._max_tokens, decoding=decoding, return_perf_metrics=True,
            return_num_output_tokens=True,
        )  # fmt: skip
        tally = Tally()
        async with (
            CardClient(self._service.grpc) as client,
            aclosing(client.stream(request, timeout_s=_ANSWER_S)) as deltas,
        ):
            async for delta in deltas:
                tally.add(delta)
        return tally


def _speed(system: str, answers: list[Tally]) -> Speed:
    return Speed(
        system,
        statistics.median(answer.tokens_per_s for answer in answers),
        statistics.median(answer.first_s or 0.0 for answer in answers),
    )
