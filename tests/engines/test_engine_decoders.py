"""Decoders for several numbers of rows: which one a pass goes to, their memory, their exchange."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from real_pair import TARGET
from tiny_models import forward_rows, random_tokens

from card.engines import SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.interface import RowCosts
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.later import Exchange
from card.engines.openvino.nodes import ANY_ROWS
from card.engines.options import EngineOptions

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = EngineOptions(
    context=512, sessions=2, threads=1, graph_rows=(1, 4, 16, 64), compressed=True
)


def test_a_text_goes_on_with_the_same_bits() -> None:
    engine = OpenVinoEngine.load(TARGET, OPTIONS, any_rows=True)
    engine.row_invariant = True
    assert engine.model.decoders.keys() == {ANY_ROWS}
    text = random_tokens(120, vocabulary=engine.vocabulary)
    expected = tiny_models.read_alone(engine, text, [64, 1])
    session = engine.open_session()
    (found,) = forward_rows(engine, [SequenceTokens(session, text[:50])])
    engine.commit_kv(session, range(50))
    told: list[RowCosts] = []
    Exchange(engine, 2, told.append).wait()
    (costs,) = told
    assert costs.pass_ms.keys() == {1, 4, 16, 64}
    at = 50
    for count in (1, 4, 3, 12, 50):
        (more,) = forward_rows(engine, [SequenceTokens(session, text[at : at + count])])
        engine.commit_kv(session, range(count))
        found = np.concatenate([found, more])
        at += count
    assert engine.model.decoders.keys() == {1, 4, 16, 64}
    assert engine.row_costs is costs
    assert engine.options.threads_alone == 2
    np.testing.assert_array_equal(found, expected)


def test_decoders_that_round_otherwise_are_not_used(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "qwen3")
    engine = OpenVinoEngine.load(tmp_path, replace(OPTIONS, context=256), any_rows=True)
    other = tmp_path / "other"
    other.mkdir()
    tiny_models.save(other, "qwen3", seed=1)
    another = OpenVinoEngine.load(other, engine.options)
    engine.model = replace(engine.model, compile_more=lambda _: another.model.decoders)
    Exchange(engine, 2, lambda _: pytest.fail("they are not to be used")).wait()
    text = random_tokens(8)
    tiny_models.read_alone(engine, text, [8])
    assert engine.model.decoders.keys() == {ANY_ROWS}


# --- graphs for fixed numbers of rows -------------------------------------------------------------


def test_model_when_its_decoders_round_differently_uses_none_of_them(tmp_path: Path) -> None:
    """Of very small models the plugin may fuse more where it knows the rows. Here those for few
    rows are another model's."""
    tiny_models.save(tmp_path, "llama2")
    tiny_models.save(tmp_path / "other", "llama2", seed=1)
    rows = EngineOptions(context=128, sessions=2, dtype="float32", threads=1, graph_rows=(1, 4, 16))
    loaded = OpenVinoEngine.load(tmp_path, rows)
    other = OpenVinoEngine.load(tmp_path / "other", loaded.options)
    compiled = {**other.model.decoders, 1: loaded.model.decoders[1]}
    engine = OpenVinoEngine(replace(loaded.model, decoders=compiled), loaded.options)
    chosen = make_row_invariant(engine)
    assert chosen.row_invariant
    assert chosen.options.graph_rows == ()


# --- memory ---------------------------------------------------------------------------------------

_GROWTH = """
import sys
from pathlib import Path
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.nodes import ANY_ROWS
from card.engines.options import EngineOptions

def resident_mib():
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20

model, *rows = sys.argv[1:]
options = EngineOptions(
    context=64, sessions=1, dtype="int8", threads=1, graph_rows=tuple(map(int, rows)),
    compressed=True,
)
before = resident_mib()
engine = OpenVinoEngine.load(Path(model), options)
session = engine.open_session()
print(resident_mib() - before)
"""


def growth_mib(model: Path, *rows: int) -> float:
    """What a fresh process takes more with decoders for so many rows loaded."""
    command = [sys.executable, "-c", _GROWTH, str(model), *map(str, rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


def test_more_decoders_keep_no_more_copies(larger_checkpoint: Path) -> None:
    assert growth_mib(larger_checkpoint, 4, 8, 16) < 1.5 * growth_mib(larger_checkpoint, 16)
