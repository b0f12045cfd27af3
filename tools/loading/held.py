"""What the processes of a service hold: memory, file descriptors, shared memory."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from rich.table import Table

from card_client import CardClient, GenerateRequest
from loading.service import Service

MEBIBYTE = 1 << 20
SHARED = "shared memory"
_LOOK_S = 0.5
_ANSWER_S = 900.0


@dataclass(frozen=True)
class Sample:
    """One look. `bytes_held` (resident) by process name, and that of all files in shared memory."""

    seconds: float
    bytes_held: dict[str, int]
    descriptors: dict[str, int]


def look(processes: Mapping[str, int], directory: Path, seconds: float) -> Sample:
    """Measure `processes` (name -> pid) and what they map under `directory`.

    Raises `psutil.NoSuchProcess` if one is gone.
    """
    held, descriptors, files = {}, {}, set()
    for name, pid in processes.items():
        process = psutil.Process(pid)
        held[name] = process.memory_info().rss
        descriptors[name] = process.num_fds()
        files |= {Path(area.path) for area in process.memory_maps()}
    held[SHARED] = sum(
        path.stat().st_blocks * 512
        for path in files
        if path.is_relative_to(directory) and path.exists()
    )
    return Sample(seconds, held, descriptors)


def growth(samples: Sequence[Sample], name: str) -> float:
    """MiB a minute: the slope of a line fitted to the second half of the samples."""
    half = samples[len(samples) // 2 :]
    minutes = np.array([sample.seconds for sample in half]) / 60
    held = np.array([sample.bytes_held[name] for sample in half]) / MEBIBYTE
    return float(np.polyfit(minutes, held, 1)[0]) if len(half) > 1 else 0.0


def write_csv(path: Path, samples: Sequence[Sample]) -> None:
    """One row per sample: seconds, then bytes and descriptors of everything."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [
            {
                "seconds": f"{one.seconds:.1f}",
                **{f"{name} bytes": size for name, size in one.bytes_held.items()},
                **{f"{name} fds": count for name, count in one.descriptors.items()},
            }
            for one in samples
        ]
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def shares(service: Service) -> dict[str, float]:
    """MiB of every process below the supervisor. What several processes map counts for each of them
    by its share (PSS), so all together are what the service takes."""
    known = {pid: name for name, pid in service.processes().items()}
    supervisor = psutil.Process(service.server.process.pid)
    found: dict[str, float] = {}
    for process in (supervisor, *supervisor.children(recursive=True)):
        name = known.get(process.pid, "others")
        found[name] = found.get(name, 0) + process.memory_full_info().pss / MEBIBYTE
    return found


async def most_held(service: Service, texts: Sequence[GenerateRequest]) -> dict[str, float]:
    """The shares when they were largest, while all texts are asked for at once."""
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
