"""A pass keeps its shape while padding is cheaper than a change, and no longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import openvino as ov
import tiny_models
from hypothesis import given
from hypothesis import strategies as st

from card.engines import SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.openvino.compiled import CompiledDecoder
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.graph import ANY_ROWS
from card.engines.openvino.shapes import RowPadding
from card.engines.options import Dtype, EngineOptions
from card.engines.row_costs import RowCosts

COSTS = RowCosts({rows: 2.0 + 0.1 * rows for rows in (1, 2, 4, 8, 16, 32)}, change_ms=1.0)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_a_pass_has_room_for_what_it_needs(needed: list[int]) -> None:
    padding = RowPadding(COSTS)
    assert all(padding.pad(rows) >= rows for rows in needed)


def test_a_run_of_smaller_passes_changes_the_shape_once_to_the_most_they_need() -> None:
    padding = RowPadding(COSTS)
    padding.pad(8)
    found = [padding.pad(rows) for rows in (2, 1, 2, 1, 2, 1, 2, 1)]
    assert found[0] == 8
    assert found[-1] == 2
    assert len(set(found)) == 2


@given(rent=st.floats(0.01, 2), price=st.floats(0.1, 5), count=st.integers(1, 50))
def test_padding_never_costs_much_more_than_twice_the_best_that_hindsight_knows(
    rent: float, price: float, count: int
) -> None:
    """The bound of ski rental: rent until it reaches the price."""
    padding = RowPadding(RowCosts({1: 1.0, 8: 1.0 + rent}, price))
    padding.pad(8)
    shapes = [padding.pad(1) for _ in range(count)]
    paid = rent * shapes.count(8) + price * (1 in shapes)
    assert paid <= 2 * min(rent * count, price) + rent + 1e-9


class RecordedRequest:
    """An infer request that remembers how it was used."""

    def __init__(self, request: ov.InferRequest) -> None:
        self._request = request
        self.bound: list[str] = []
        self.shares_outputs: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def set_tensor(self, name: str, tensor: ov.Tensor) -> None:
        self.bound.append(name)
        self._request.set_tensor(name, tensor)

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


def test_the_kv_cache_is_bound_once_and_no_output_is_copied(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "llama3")
    options = EngineOptions(
        context=128, sessions=3, branches=2, pending=8, dtype="float32", threads=1
    )
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
    assert request.bound.count("keys.0") == request.bound.count("values.0") == 1
    assert request.shares_outputs == [True] * 5


# --- graphs for fixed numbers of rows -------------------------------------------------------------


def chains(dtype: Dtype = "float32", graph_rows: tuple[int, ...] = (1, 4)) -> EngineOptions:
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
    for batch in ([(one, 1)], [(one, 3)], [(other, 4)], [(one, 5)], [(one, 1), (other, 1)]):
        engine.forward([SequenceTokens(session, list(range(rows))) for session, rows in batch])
        for session, rows in batch:
            engine.commit_kv(session, range(rows))
    passes = {rows: len(graph.requests[0].shares_outputs) for rows, graph in graphs.items()}
    assert passes == {1: 1, 4: 2, ANY_ROWS: 2}


def test_a_model_whose_decoders_round_otherwise_goes_without_them(tmp_path: Path) -> None:
    """Of very small models the plugin may fuse more where it knows the rows. Here those for few
    rows are another model's."""
    tiny_models.save(tmp_path, "llama2")
    tiny_models.save(tmp_path / "other", "llama2", seed=1)
    loaded = OpenVinoEngine.load(tmp_path, chains("float32", (1, 4, 16)))
    other = OpenVinoEngine.load(tmp_path / "other", loaded.options)
    compiled = {**other.model.decoders, ANY_ROWS: loaded.model.decoders[ANY_ROWS]}
    engine = OpenVinoEngine(replace(loaded.model, decoders=compiled), loaded.options)
    chosen = make_row_invariant(engine)
    assert chosen.row_invariant
    assert chosen.options.graph_rows == ()
