"""The examples of docs/extending.md, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PATHS = [str(REPOSITORY / "tests/doubles"), str(REPOSITORY / "benchmarks")]
PAGE = REPOSITORY / "docs/extending.md"
BEGIN = """
import sys
sys.path[:0] = {paths!r}
"""
USE = """
from dataclasses import replace
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of
from bench.systems import SYSTEMS
from card.serving.metrics.exporter import DECODINGS
from card.serving.requests.wire import DECODINGS as WIRE
from card.settings import Settings
from card.speculation.pacing import counted_as

for speculation in {chosen!r}:
    settings = Settings.model_validate({{"speculation": {{"rows": 8, **speculation}}}})
    model = FakeModel(vocabulary=4)
    request = replace(
        request_of([1, 2, 3], 24, settings.decoding),
        drafter=settings.drafter, acceptance=settings.speculation.acceptance,
    )
    with OneProcess(FakeEngine(model, tree=False), FakeEngine(model, tree=True), settings) as both:
        stream = both.open(request)
        assert both.run([stream]) == [autoregressive(model, request)], speculation
        assert stream.counters.accepted > 0, speculation
    assert counted_as(settings.decoding) in DECODINGS and settings.decoding in WIRE
    assert set(speculation.values()) <= set(SYSTEMS), speculation
"""
SETTINGS = {
    "drafters": "drafter",
    "drafters/growth": "growth",
    "acceptance": "acceptance",
    "pacing": "decoding",
}
"""Field of the settings that chooses from the registry of each folder."""


def examples() -> list[tuple[str, str, str]]:
    """Folder, registration and code of each."""
    found = []
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        match = re.match(r"# ([\w/]+)/\w+\.py +(\w+)(\[.*)", code)
        assert match is not None
        found.append((match[1], match[2] + match[3], code))
    return found


def test_examples_with_one_line_in_their_registries_work() -> None:
    """All in one new process, because registries are read at import."""
    script, chosen = BEGIN.format(paths=PATHS), []
    for folder, line, code in examples():
        if folder in SETTINGS:
            registry, key = line.split("[")[0], line.split('"')[1]
            module = f"card.speculation.{folder.replace('/', '.')}"
            script += f"from {module} import {registry}\n{code}\n{line}\n"
            chosen.append({SETTINGS[folder]: key})
    assert len(chosen) == len(SETTINGS)
    script += USE.format(chosen=chosen)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
