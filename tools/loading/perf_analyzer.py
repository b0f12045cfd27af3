"""NVIDIA's `perf_analyzer`, which ships inside the tritonclient wheel."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
"""Libraries that the program needs and a plain machine lacks, and nvidia-pytriton's copies."""
_IN_VAIN = "No valid requests recorded"
_HERE = "127.0.0.1,localhost,::1"
WINDOWS = 3
"""Windows in a row that perf_analyzer measures. How far they differ is shown, not judged."""


class PerfAnalyzerError(RuntimeError):
    """perf_analyzer cannot start, or measured nothing; the message says why and what to do."""


class NothingMeasuredError(PerfAnalyzerError):
    """No request ended in the time that was given."""


@dataclass(frozen=True)
class Measurement:
    """One level of concurrency. Rates are per second, times are milliseconds: median and 99th
    percentile.

    responses  per request
    first      from a request to its first text
    gap        between two responses of one stream
    whole      from a request to its last response
    """

    concurrency: int
    requests: float
    responses: float
    first: tuple[float, float]
    gap: tuple[float, float]
    whole: tuple[float, float]


def measure(
    url: str, bodies: Sequence[dict[str, Any]], concurrency: int, seconds: float, folder: Path
) -> Measurement:
    """Load `ensemble` at `url` with streams of these requests, one after the other; the raw CSV and
    timestamps stay in `folder`. Raises `PerfAnalyzerError`."""
    data, raw, times = (
        folder / name for name in ("input.json", f"{concurrency:03}.csv", f"{concurrency:03}.json")
    )
    tensors = [{name: [value] for name, value in body.items()} for body in bodies]
    data.write_text(json.dumps({"data": tensors}), encoding="utf-8")
    for left in (raw, times):  # by a run before, or its figures would pass for those of this one
        left.unlink(missing_ok=True)
    said = _run(
        [
            *("-m", "ensemble", "-u", url, "-i", "grpc", "-f", str(raw), "--streaming", "--async"),
            "--shape=text_input:1",
            f"--input-data={data}",
            f"--concurrency-range={concurrency}",
            "--measurement-mode=time_windows",
            f"--measurement-interval={round(seconds * 1000 / WINDOWS)}",
            f"--max-trials={WINDOWS}",
            "--stability-percentage=999",
            f"--profile-export-file={times}",
        ]
    )
    (folder / f"{concurrency:03}.log").write_text(said, encoding="utf-8")
    if not raw.exists() or not times.exists():
        last = " ".join([line for line in said.splitlines() if line.strip()][-3:])
        if _IN_VAIN in said:
            raise NothingMeasuredError(f"no request ended; allow more --seconds: {last}")
        raise PerfAnalyzerError(f"perf_analyzer failed; does a server run at {url}? {last}")
    return _summary(concurrency, raw, times)


def _run(options: Sequence[str]) -> str:
    """What it says. The libraries that it lacks are linked from nvidia-pytriton's wheel; where that
    is not installed (in a container), the system has them."""
    program = Path(sys.prefix, "bin", "perf_analyzer")
    if not program.exists():
        raise PerfAnalyzerError(f"{program} is missing; run scripts/setup")
    wheel = find_spec("pytriton")
    with tempfile.TemporaryDirectory() as folder:
        for name, pattern in LIBRARIES.items() if wheel and wheel.origin else ():
            bundled = Path(str(wheel and wheel.origin)).parent.parent / "nvidia_pytriton.libs"
            if found := sorted(bundled.glob(pattern)):
                Path(folder, name).symlink_to(found[0])
        path = os.pathsep.join(filter(None, (folder, os.environ.get("LD_LIBRARY_PATH"))))
        return subprocess.run(
            [program, *options],
            env=os.environ | {"LD_LIBRARY_PATH": path, "no_grpc_proxy": asked_directly()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        ).stdout


def asked_directly() -> str:
    """Hosts that it asks past any proxy: those that the environment names, for gRPC or for all, and
    this machine, which no proxy can reach for it."""
    variables = "no_grpc_proxy", "no_proxy"  # the first that is set; gRPC reads no capitals
    named = next(filter(None, map(os.environ.get, variables)), None)
    return f"{named},{_HERE}" if named else _HERE


def texts_ns(request: dict[str, Any]) -> list[int]:
    """When the responses of a request came, without the empty ones of its time in the queue."""
    times: list[int] = request["response_timestamps"]
    for first, outputs in enumerate(request.get("response_outputs", ())):
        if str(outputs.get("text_output", "-")).strip("\0"):
            return times[first:]
    return times


def _summary(concurrency: int, raw: Path, times: Path) -> Measurement:
    with raw.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    streams = [
        (np.array(texts_ns(request)) - request["timestamp"]) / 1e6
        for experiment in json.loads(times.read_text(encoding="utf-8"))["experiments"]
        for request in experiment["requests"]
        if texts_ns(request)
    ]
    if not streams:
        raise PerfAnalyzerError(f"no request was answered at concurrency {concurrency}; see {raw}")
    gaps = [gap for arrivals in streams for gap in np.diff(arrivals)]
    return Measurement(
        concurrency,
        float(row["Inferences/Second"]),
        float(np.mean([len(arrivals) for arrivals in streams])),
        _percentiles([arrivals[0] for arrivals in streams]),
        _percentiles(gaps or [0.0]),
        _percentiles([arrivals[-1] for arrivals in streams]),
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and 99th."""
    median, most = np.percentile(values, (50, 99)).tolist()
    return median, most
