"""Streams of every way to speculate at once, held against the target alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from running_service import RunningService

Way = Mapping[str, str]
"""What a request chooses."""
Asked = tuple[str, dict[str, Any], Way]
"""A prompt, what is said of its text (the same for each text of a prompt), and a way."""


async def write_what_the_target_alone_writes(
    service: RunningService, ways: Sequence[Way], prompts: Sequence[str], sampling: dict[str, Any]
) -> None:
    request = {"max_tokens": 64, **sampling}
    alone = [await service.text(p, decoding="autoregressive", **request) for p in prompts]
    wanted = [(way, number) for way in ways for number in range(len(prompts))]
    texts = await asyncio.gather(
        *(service.text(prompts[number], **way, **request) for way, number in wanted)
    )
    for (way, number), text in zip(wanted, texts, strict=True):
        assert text == alone[number], (way, prompts[number])


async def write_so_while_one_is_struck(
    service: RunningService,
    asked: Sequence[Asked],
    victim: str = "draft",
    blow: signal.Signals = signal.SIGKILL,
) -> None:
    """Strike a model's process while they stream; another one takes its place."""
    alone: dict[str, str] = {}
    for prompt, request, _ in asked:
        if prompt not in alone:
            alone[prompt] = await service.text(prompt, decoding="autoregressive", **request)
    reading = [
        asyncio.create_task(service.text(prompt, **way, **request))
        for prompt, request, way in asked
    ]
    lost = service.pid_of(victim)
    before = service.metric("card_committed_tokens_total")
    await service.until(
        lambda: service.metric("card_committed_tokens_total") > before, "the streams flow"
    )
    os.kill(lost, blow)
    assert await asyncio.gather(*reading) == [alone[prompt] for prompt, _, _ in asked]
    await service.until_back_without(lost)
