"""A pass goes to the smallest decoder that takes it, and nothing is copied that need not be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import openvino as ov
import tiny_models

from card.engines import SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.openvino.compiled import CompiledDecoder
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.graph import ANY_ROWS
from card.engines.options import Dtype, EngineOptions

# --- memory that would come and go ----------------------------------------------------------------


class RecordedRequest:
    """An infer request that remembers how it was used."""

    def __init__(self, request: ov.InferRequest) -> None:
        self._request = request
        self.shares_outputs: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def infer(self, *, share_outputs: bool = False) -> None:
        self.shares_outputs.append(share_outputs)
        self._request.infer(share_outputs=share_outputs)


class RecordedGraph:
    """A compiled graph whose requests are recorded."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._compiled = compiled
        self.requests: list[RecordedRequest] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def create_infer_request(self) -> RecordedRequest:
        self.requests.append(RecordedRequest(self._compiled.create_infer_request()))
        return self.requests[-1]


def recorded_decoder(decoder: CompiledDecoder, graph: RecordedGraph) -> CompiledDecoder:
    return replace(decoder, graph=cast(ov.CompiledModel, graph))


def test_no_output_is_copied(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "llama3")
    options = EngineOptions(context=128, sessions=3, paths=2, pending=8, dtype="float32", threads=1)
    loaded = OpenVinoEngine.load(tmp_path, options)
    graph = RecordedGraph(loaded.model.decoders[ANY_ROWS].graph)
    compiled = {ANY_ROWS: recorded_decoder(loaded.model.decoders[ANY_ROWS], graph)}
    engine = OpenVinoEngine(replace(loaded.model, decoders=compiled), options)
    sessions = [engine.open_session() for _ in range(3)]
    for sharing in ([0], [0, 1], [1, 2], [2], [0, 2]):
        engine.forward([SequenceTokens(sessions[place], [1, 2]) for place in sharing])
        for place in sharing:
            engine.commit_kv(sessions[place], [0])
    (request,) = graph.requests
    assert request.shares_outputs == [True] * 5


# --- graphs for fixed numbers of rows -------------------------------------------------------------


def chains(dtype: Dtype = "float32", graph_rows: tuple[int, ...] = (1, 4, 8)) -> EngineOptions:
    return EngineOptions(context=128, sessions=2, dtype=dtype, threads=1, graph_rows=graph_rows)


def test_few_rows_of_one_session_go_to_the_smallest_graph_that_takes_them(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "llama3")
    loaded = OpenVinoEngine.load(tmp_path, chains())
    graphs = {rows: RecordedGraph(decoder.graph) for rows, decoder in loaded.model.decoders.items()}
    compiled = {
        rows: recorded_decoder(loaded.model.decoders[rows], graph) for rows, graph in graphs.items()
    }
    engine = OpenVinoEngine(replace(loaded.model, decoders=compiled), loaded.options)
    one, other = engine.open_session(), engine.open_session()
    for batch in ([(one, 1)], [(one, 3)], [(other, 4)], [(one, 5)], [(one, 4), (other, 1)]):
        engine.forward([SequenceTokens(session, list(range(rows))) for session, rows in batch])
        for session, rows in batch:
            engine.commit_kv(session, range(rows))
    passes = {rows: len(graph.requests[0].shares_outputs) for rows, graph in graphs.items()}
    assert passes == {1: 1, 4: 2, 8: 2}


def test_a_model_whose_decoders_round_otherwise_goes_without_them(tmp_path: Path) -> None:
    """Of very small models the plugin may fuse more where it knows the rows. Here those for few
    rows are another model's."""
    tiny_models.save(tmp_path, "llama2")
    tiny_models.save(tmp_path / "other", "llama2", seed=1)
    loaded = OpenVinoEngine.load(tmp_path, chains("float32", (1, 4, 16)))
    other = OpenVinoEngine.load(tmp_path / "other", loaded.options)
    compiled = {**other.model.decoders, 1: loaded.model.decoders[1]}
    engine = OpenVinoEngine(replace(loaded.model, decoders=compiled), loaded.options)
    chosen = make_row_invariant(engine)
    assert chosen.row_invariant
    assert chosen.options.graph_rows == ()
