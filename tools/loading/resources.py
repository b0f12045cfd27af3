"""What the processes of a service hold: resident memory, file descriptors, shared memory."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

MEBIBYTE = 1 << 20
SHARED = "shared memory"


@dataclass(frozen=True)
class Sample:
    """One look. `bytes_held` by process name, and that of all files in shared memory."""

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
    names, holders = samples[0].bytes_held, samples[0].descriptors
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(
            ["seconds", *(f"{name} bytes" for name in names), *(f"{n} fds" for n in holders)]
        )
        for sample in samples:
            rows.writerow(
                [f"{sample.seconds:.1f}", *sample.bytes_held.values(), *sample.descriptors.values()]
            )
