"""After the largest passes no pass needs more memory for its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import tiny_models

from card.engines import Logits, Ranking, SequenceTokens
from card.engines.calibration import drop
from card.engines.layout import SHORT
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import DRAFT_ROWS, EngineOptions
from card.engines.warm_up import run_largest_passes

SESSIONS, CONTEXT = 3, 200
GRAPHS = (1, 4, SHORT, 64)


class RecordedEngine(OpenVinoEngine):
    """Remembers every pass: each session's length and rows."""

    passes: list[list[tuple[int, int]]]

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        assert all(rows.wanted <= len(rows.tokens) for rows in batch)
        self.passes.append([(self.length(rows.session), len(rows.tokens)) for rows in batch])
        return super().forward(batch, alone=alone)


@pytest.fixture(params=[0, 1, 2], ids=["trees", "chains", "paths"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> RecordedEngine:
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
    engine = recorded(OpenVinoEngine.load(tmp_path, options))
    run_largest_passes(cast(OpenVinoEngine, engine))
    return engine


def recorded(loaded: OpenVinoEngine, kind: type[RecordedEngine] = RecordedEngine) -> RecordedEngine:
    engine = kind(loaded.model, loaded.options)
    engine.passes = []
    return engine


def block_sizes(engine: OpenVinoEngine) -> dict[tuple[int, str], int]:
    """Elements of every block of memory by decoder and input."""
    return {
        (rows, name): block.size
        for rows, runner in engine._runners
        for name, block in runner._inputs._memory.items()
    }


def test_all_sessions_and_every_graph_are_met(engine: RecordedEngine) -> None:
    shared, *others = engine.passes
    assert shared == [(0, SHORT)] * SESSIONS
    assert others == [[(0, rows)] for rows in GRAPHS]


def test_no_later_pass_needs_more_memory_for_its_inputs(engine: RecordedEngine) -> None:
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


@pytest.mark.parametrize("most", [DRAFT_ROWS, SHORT])
def test_a_draft_of_one_slot_meets_all_the_rows_it_may_grow_by(tmp_path: Path, most: int) -> None:
    class Bounded(RecordedEngine):
        @property
        def most_rows(self) -> int:
            return most

    tiny_models.save(tmp_path, "llama3")
    options = EngineOptions(
        context=CONTEXT, sessions=1, paths=0, pending=32, dtype="float32", threads=1
    )
    engine = recorded(OpenVinoEngine.load(tmp_path, options), Bounded)
    run_largest_passes(cast(OpenVinoEngine, engine))
    assert [(0, most)] in engine.passes
    before = block_sizes(engine)
    session = engine.open_session()
    engine.forward([SequenceTokens(session, [1] * most, ranking=Ranking(4))])
    assert block_sizes(engine) == before


def test_many_sessions_share_a_pass_however_few_rows_it_may_have(tmp_path: Path) -> None:
    """Compressed matrices bound the rows of a pass, and so what all sessions may have in one."""
    tiny_models.build(tiny_models.FAMILIES["llama3"]).bfloat16().save_pretrained(tmp_path)
    options = EngineOptions(
        context=CONTEXT, sessions=9, dtype="float32", threads=1, compressed=True
    )
    engine = OpenVinoEngine.load(tmp_path, options)
    run_largest_passes(engine)
    before = block_sizes(engine)
    sessions = [engine.open_session() for _ in range(9)]
    for start in range(0, CONTEXT - SHORT, 46):
        engine.forward([SequenceTokens(sessions[0], [1] * 46)])
        engine.commit_kv(sessions[0], range(min(46, CONTEXT - SHORT - start)))
    for counts in ([16] + [6] * 8, [7] * 9, [16] * 4, [1] * 8 + [16]):
        batch = [
            SequenceTokens(each, [1] * rows) for each, rows in zip(sessions, counts, strict=False)
        ]
        engine.forward(batch)
        drop(engine, batch)
    assert block_sizes(engine) == before
