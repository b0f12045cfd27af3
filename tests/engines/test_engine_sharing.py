"""Decoders for several numbers of rows share one copy of the weights, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from numpy.typing import NDArray
from tiny_models import random_tokens

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import Dtype, EngineOptions

ROWS = (1, 8, 4, 40)
OPTIONS = EngineOptions(context=128, sessions=2, paths=2, dtype="float32", threads=1)


def read_by_turns(engine: OpenVinoEngine, text: list[int]) -> list[NDArray[np.float32]]:
    """Logits of a text whose passes go to one decoder after the other, some with wrong branches."""
    session, found = engine.open_session(), []
    for count in (1, 8, 4, 1, 20, 3, 7, 1, 40, 2):
        rows = SequenceTokens(session, text[:count])
        found += [logits.row(row) for (logits,) in [engine.forward([rows])] for row in range(count)]
        engine.commit_kv(session, range(count))
        wrong = [text[0] + 1, *text[count : count + 2]]
        engine.forward([SequenceTokens(session, wrong, [FOLLOWS_PREFIX, FOLLOWS_PREFIX, 1])])
        engine.commit_kv(session, [])
        text = text[count:]
    engine.close_session(session)
    return found


@pytest.mark.parametrize("family", ["llama3", "qwen2_tied", "qwen3"])
def test_logits_are_the_same_bits(tmp_path: Path, family: str) -> None:
    tiny_models.save(tmp_path, family)
    text = random_tokens(90)
    engines = [
        OpenVinoEngine.load(tmp_path, replace(OPTIONS, graph_rows=rows)) for rows in (ROWS, ())
    ]
    together, alone = (read_by_turns(engine, text) for engine in engines)
    np.testing.assert_array_equal(np.stack(together), np.stack(alone))


# --- memory ---------------------------------------------------------------------------------------

_GROWTH = """
import sys
from pathlib import Path
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions

def resident_mib():
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20

model, dtype, compressed, rows = sys.argv[1:]
options = EngineOptions(
    context=64,
    sessions=1,
    dtype=dtype,
    threads=1,
    graph_rows=tuple(map(int, rows.split(","))),
    compressed=bool(compressed),
)
before = resident_mib()
engine = OpenVinoEngine.load(Path(model), options)
session = engine.open_session()
print(resident_mib() - before)
"""


def growth_mib(
    model: Path,
    dtype: Dtype,
    *,
    compressed: bool = False,
    rows: str = "4,8,16",
) -> float:
    """What a fresh process takes more with `model` loaded."""
    arguments = (str(model), dtype, "1" * compressed, rows)
    command = [sys.executable, "-c", _GROWTH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


def test_more_decoders_keep_no_more_copies(larger_checkpoint: Path) -> None:
    one, three = (
        growth_mib(larger_checkpoint, "int8", compressed=True, rows=rows)
        for rows in ("16", "4,8,16")
    )
    assert three < 1.5 * one
