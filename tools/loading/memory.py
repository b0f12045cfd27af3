"""The memory of each process of a service while long texts fill all its slots."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import psutil
from rich.table import Table

from card.settings import REPOSITORY_ROOT, Settings
from card_client import CardClient, GenerateRequest
from loading.service import Service
from model_files import model_files_of

MEBIBYTE = 1 << 20
_LONG = 1_000
"""Tokens of a prompt, and new ones, if the limits allow as many."""
_SPARE = 16
"""A piece of a text may have a few more tokens than it had there."""
_LOOK_S = 0.5
_ANSWER_S = 900.0


def shares(service: Service) -> dict[str, float]:
    """MiB of every process below the supervisor. A page that several processes map counts for each
    of them by its share (PSS), so all together are what the service takes."""
    known = {pid: name for name, pid in service.processes().items()}
    supervisor = psutil.Process(service.server.process.pid)
    found: dict[str, float] = {}
    for process in (supervisor, *supervisor.children(recursive=True)):
        name = known.get(process.pid, "others")
        found[name] = found.get(name, 0) + process.memory_full_info().pss / MEBIBYTE
    return found


async def most_held(service: Service, texts: Sequence[GenerateRequest]) -> dict[str, float]:
    """The shares when they were largest, while all texts are asked for at once. Raises
    `CardError`."""
    most = shares(service)
    async with CardClient(service.grpc) as client:
        running = asyncio.gather(*(client.generate(text, timeout_s=_ANSWER_S) for text in texts))
        while not running.done():
            now = await asyncio.to_thread(shares, service)
            most = max(most, now, key=lambda held: sum(held.values()))
            await asyncio.wait([running], timeout=_LOOK_S)
        await running
    return most


def shares_table(looks: Mapping[str, Mapping[str, float]]) -> Table:
    """MiB of every process and of all, a column for each look."""
    table = Table("MiB of PSS", *looks)
    last = list(looks.values())[-1]
    for name in sorted(last, key=lambda name: -last[name]):
        table.add_row(name, *(f"{held.get(name, 0):,.0f}" for held in looks.values()))
    table.add_row("all", *(f"{sum(held.values()):,.0f}" for held in looks.values()), style="bold")
    return table


def long_texts(settings: Settings) -> list[GenerateRequest]:
    """A request for each slot, with a prompt of its own out of this repository's pages."""
    limits = settings.limits
    size = min(_LONG, limits.prompt_tokens - _SPARE)
    most = min(_LONG, limits.max_tokens, limits.context_tokens - size - _SPARE)
    files = sorted((REPOSITORY_ROOT / "docs").glob("*.md"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tokens = model_files_of(settings.target.path).tokenizer().encode(text)
    prompts = []
    for slot in range(settings.cache.slots):
        first = slot * size % (len(tokens.ids) - size)
        prompts.append(text[tokens.offsets[first][0] : tokens.offsets[first + size - 1][1]])
    return [GenerateRequest(prompt, max_tokens=most, end_id=-1) for prompt in prompts]
