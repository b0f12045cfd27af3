"""What a service's processes hold while long texts fill every slot.

PSS: what several processes map together counts for each of them by its share, so all of them add
up to what the service takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.table import Table

from card.settings import REPOSITORY_ROOT, Settings
from card_client import CardClient, GenerateRequest
from card_gateway.template import read_model
from loading.service import Service

_KINDS = {"Pss_Anon": "own", "Pss_File": "files", "Pss_Shmem": "shared"}
_LOOK_S = 0.5
_ANSWER_S = 900.0
_PROMPT_TOKENS = _NEW_TOKENS = 1_000
_ROUNDING = 16
"""A piece of a text may have a few more tokens than it had there."""


@dataclass(frozen=True)
class Look:
    """KiB of each process, by its name and the kind of memory."""

    held: Mapping[str, Mapping[str, int]]

    @property
    def total(self) -> int:
        return sum(sum(kinds.values()) for kinds in self.held.values())


def look(service: Service) -> Look:
    """What every process below the supervisor holds. Raises `OSError` if one is gone."""
    known = {pid: name for name, pid in service.processes().items()}
    supervisor = psutil.Process(service.server.process.pid)
    found: dict[str, dict[str, int]] = {}
    for process in (supervisor, *supervisor.children(recursive=True)):
        name = known.get(process.pid, "others")
        kinds = found.setdefault(name, dict.fromkeys(_KINDS.values(), 0))
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]:
            kind, value = line.split(":")
            if kind in _KINDS:
                kinds[_KINDS[kind]] += int(value.split()[0])
    return Look(found)


def long_texts(settings: Settings) -> list[GenerateRequest]:
    """As many as there are slots, with prompts of their own out of this repository's pages."""
    limits = settings.limits
    size = min(_PROMPT_TOKENS, limits.prompt_tokens - _ROUNDING)
    most = min(_NEW_TOKENS, limits.max_tokens, limits.context_tokens - size - _ROUNDING)
    _, tokenizer = read_model(settings.target.path)
    pages = sorted((REPOSITORY_ROOT / "docs").glob("*.md"))
    ids = tokenizer.encode("\n".join(page.read_text("utf-8") for page in pages)).ids
    prompts = [ids[at * size : (at + 1) * size] for at in range(settings.cache.slots)]
    return [
        GenerateRequest(tokenizer.decode(prompt), max_tokens=most, end_id=-1) for prompt in prompts
    ]


async def most_held(service: Service, texts: Sequence[GenerateRequest]) -> Look:
    """The look with the most, while all are asked for at once until all have ended."""
    most = look(service)
    async with CardClient(service.grpc) as client:
        running = asyncio.gather(*(client.generate(text, timeout_s=_ANSWER_S) for text in texts))
        while not running.done():
            now = await asyncio.to_thread(look, service)
            most = max(most, now, key=lambda seen: seen.total)
            await asyncio.wait([running], timeout=_LOOK_S)
        await running
    return most


def show(looks: Mapping[str, Look]) -> Table:
    """MiB of every process, and of which kinds."""
    table = Table("MiB of PSS", *looks, "of which in the end")
    last = list(looks.values())[-1]
    for name, kinds in sorted(last.held.items(), key=lambda item: -sum(item[1].values())):
        each = (sum(seen.held.get(name, {}).values()) for seen in looks.values())
        parts = ", ".join(f"{kind} {_mib(size)}" for kind, size in kinds.items() if size)
        table.add_row(name, *(_mib(size) for size in each), parts)
    table.add_row("all", *(_mib(seen.total) for seen in looks.values()), style="bold")
    return table


def _mib(kib: int) -> str:
    return f"{kib / 1024:,.0f}"
