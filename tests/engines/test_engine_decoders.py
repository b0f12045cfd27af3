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

from card.engines import Ranking, SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.interface import RowCosts
from card.engines.openvino import model
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.graph import ANY_ROWS
from card.engines.openvino.later import Exchange
from card.engines.options import DRAFT_ROWS, EngineOptions
from card.engines.sessions import SHORT
from card.engines.warm_up import run_largest_passes

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


def test_large_model_is_served_by_one_decoder_when_loaded_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save(tmp_path, "qwen3")
    monkeypatch.setattr(model, "_MOST_WITH_FIXED_ROWS", 1)
    options = replace(OPTIONS, context=256, threads_alone=2)
    engine = OpenVinoEngine.load(tmp_path, options, any_rows=True)
    assert engine.model.decoders.keys() == {ANY_ROWS}
    assert not engine.awaits_decoders
    assert engine.options.threads_alone == 2


def test_a_model_whose_decoders_round_otherwise_goes_without_them(tmp_path: Path) -> None:
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


SESSIONS, CONTEXT = 3, 200
GRAPHS = (1, 4, SHORT, 64)


@pytest.fixture(params=[0, 1, 2], ids=["trees", "chains", "paths"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> OpenVinoEngine:
    tiny_models.save(tmp_path, "llama3")
    options = EngineOptions(
        context=CONTEXT,
        sessions=SESSIONS,
        paths=request.param,
        pending=32,
        dtype="float32",
        threads=1,
        graph_rows=GRAPHS,
    )
    engine = OpenVinoEngine.load(tmp_path, options)
    run_largest_passes(engine)
    return engine


def block_sizes(engine: OpenVinoEngine) -> dict[tuple[int, str], int]:
    """Elements of every block of memory by decoder and input."""
    return {
        (rows, name): block.size
        for rows, runner in engine._runners
        for name, block in runner._inputs._memory.items()
    }


def test_no_later_pass_needs_more_memory_for_its_inputs(engine: OpenVinoEngine) -> None:
    before = block_sizes(engine)
    sessions = [engine.open_session() for _ in range(SESSIONS)]

    def rows(session: int, count: int, sharing: int = 1) -> SequenceTokens:
        if not engine.options.grows_trees:
            return SequenceTokens(session, [1] * count)
        return SequenceTokens(
            session, [1] * count, logits=min(count, DRAFT_ROWS // sharing), ranking=Ranking(4)
        )

    for _ in range(0, CONTEXT - 20, 60):
        engine.forward([rows(sessions[1], 60)])
        engine.commit_kv(sessions[1], range(60))
        for count in (1, 3, 4, 9, SHORT):
            for sharing in (sessions, sessions[1:], sessions[1:2]):
                engine.forward([rows(session, count, len(sharing)) for session in sharing])
                for session in sharing:
                    engine.commit_kv(session, [])
    assert block_sizes(engine) == before
