"""Everything by which one run of a service can be told to have existed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
from running_service import RunningService

from card.serving.supervision.processes import REGIONS, find_orphans, find_stubs
from card.serving.supervision.states import STUBS

TRACES = len(STUBS) + 2
"""What a service keeps in shared memory: a region per stub, its run directory and its pool."""


@dataclass(frozen=True)
class Traces:
    """Processes and files of one run of the server; the run directory outlives the run."""

    region_prefix: str
    files: list[Path]

    @classmethod
    def of(cls, service: RunningService) -> Traces:
        region = find_stubs(service.server_pid)["card"].region
        prefix, _, _ = region.rpartition("_")
        run_directory = service.settings.cache.directory / prefix.replace("stub", "run")
        pool = service.pool()
        pool.close()
        return cls(f"{prefix}_", [run_directory, pool.path.parent])

    def processes(self) -> list[psutil.Process]:
        return find_orphans(self.region_prefix)

    def paths(self) -> list[Path]:
        return [
            *REGIONS.glob(f"{self.region_prefix}*"),
            *(file for file in self.files if file.exists()),
        ]
