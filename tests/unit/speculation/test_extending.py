"""The examples of docs/extending.md, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs/extending.md"
FOLDER = Path("python_backend/card/speculation")
USE = """
import sys
sys.path[:0] = {paths!r}
{registration}
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of
from dataclasses import replace
from bench.systems import SYSTEMS
from card.serving.metrics.families import DECODINGS
from card.serving.requests.wire import DECODINGS as WIRE
from card.settings import Settings
from card.speculation.pacing import counted_as

settings = Settings.model_validate({{"speculation": {{"rows": 8, **{speculation!r}}}}})
model = FakeModel(vocabulary=4)
request = replace(
    request_of([1, 2, 3], 24, settings.decoding),
    drafter=settings.drafter, acceptance=settings.speculation.acceptance,
)
with OneProcess(FakeEngine(model, tree=False), FakeEngine(model, tree=True), settings) as both:
    stream = both.open(request)
    assert both.run([stream]) == [autoregressive(model, request)]
    assert stream.counters.accepted > 0
assert counted_as(settings.decoding) in DECODINGS and settings.decoding in WIRE
assert {key!r} in SYSTEMS
"""


def examples() -> list[tuple[str, str, str]]:
    """Folder, registration and code of each."""
    found = []
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        match = re.match(r"# ([\w/]+)/\w+\.py +(\w+)(\[.*)", code)
        assert match is not None
        found.append((match[1], match[2] + match[3], code))
    return found


@pytest.mark.parametrize(
    ("folder", "setting"),
    [
        ("drafters", "drafter"),
        ("drafters/growth", "growth"),
        ("acceptance", "acceptance"),
        ("pacing", "decoding"),
    ],
)
def test_an_example_works_with_one_line_in_its_registry(folder: str, setting: str) -> None:
    (found,) = [example for example in examples() if example[0] == folder]
    _, line, code = found
    registry, key = line.split("[")[0], line.split('"')[1]
    registration = (
        f"from card.speculation.{folder.replace('/', '.')} import {registry}\n{code}\n{line}"
    )
    script = USE.format(
        paths=[str(REPOSITORY / "tests/doubles"), str(REPOSITORY / "benchmarks")],
        registration=registration,
        speculation={setting: key},
        key=key,
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
