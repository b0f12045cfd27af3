"""The OpenVINO engine: a compiled decoder, its sessions, and what was measured at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import properties
from openvino.properties import hint

from card.engines.architecture import Architecture, read_architecture
from card.engines.checkpoint import Checkpoint
from card.engines.interface import Logits, Ranking, RowCosts, Rows
from card.engines.layout import SHORT, Pass
from card.engines.openvino.feed import Feed
from card.engines.openvino.graph import GraphOptions, build_graph, most_ranked
from card.engines.openvino.kv import ELEMENTS, KeyValueCache
from card.engines.openvino.shapes import RowPadding
from card.engines.openvino.weights import Bfloat16Weights, Float32Weights, Int8Weights, WeightFormat
from card.engines.options import MAX_PASS_ROWS, Dtype, EngineOptions
from card.engines.processor import resolve_dtype
from card.engines.sessions import SessionEngine, check_context

WEIGHT_FORMATS: dict[Dtype, type[WeightFormat]] = {
    "bfloat16": Bfloat16Weights,
    "float32": Float32Weights,
    "int8": Int8Weights,
}


_REAL_INPUTS = frozenset({"mask", "temperature", "noise"})
"""Inputs of float32; all others are int32."""

_NO_RANKING = Ranking(1)

_PREPARED_CAPACITY = "CPU_RUNTIME_CACHE_CAPACITY"
_PREPARED_OPERATORS = 1024
"""Operators prepared for some shape that are kept, some forty for one shape of a pass. The stock
limit of 5,000 let a process under mixed load grow for many minutes."""


class OpenVinoEngine(SessionEngine[KeyValueCache]):
    """Implements `card.engines.interface.Engine` with one compiled graph."""

    def __init__(
        self,
        architecture: Architecture,
        compiled: ov.CompiledModel,
        options: EngineOptions,
        *,
        ranks: bool,
    ) -> None:
        kind = _kv_type(options.dtype)
        super().__init__(
            architecture,
            options,
            lambda lanes, places: KeyValueCache(architecture, lanes, places, kind),
        )
        self._compiled = compiled
        self._ranks = ranks
        self._request = compiled.create_infer_request()
        self._bound_lanes: range | None = None
        self._inputs: dict[str, NDArray[Any]] = {}
        """What the graph reads, by input."""
        self._feed = Feed(architecture.group, architecture.kv_heads, RowPadding(None))

    @classmethod
    def load(cls, directory: Path, options: EngineOptions) -> OpenVinoEngine:
        """Load a Hugging Face directory. Raises `EngineError` saying what does not fit."""
        architecture = read_architecture(directory)
        check_context(directory, architecture, options)
        options = replace(options, dtype=resolve_dtype(options.dtype))
        graph = build_graph(
            architecture,
            Checkpoint(directory, architecture),
            GraphOptions(
                weights=WEIGHT_FORMATS[options.dtype](),
                kv_type=_kv_type(options.dtype),
                positions=options.context + MAX_PASS_ROWS,
                ranks=options.grows_trees,
            ),
        )
        return cls(architecture, compile_graph(graph, options), options, ranks=options.grows_trees)

    def reconfigured(self, options: EngineOptions) -> OpenVinoEngine:
        """The same weights with other buffers (used while calibrating)."""
        return OpenVinoEngine(self.architecture, self._compiled, options, ranks=self._ranks)

    @property
    def dtype(self) -> str:
        return self.options.dtype

    def forward(self, batch: Sequence[Rows]) -> list[Logits]:
        # A graph attends all its lanes alike, so long chunks do not share one with short rows.
        short = [place for place, rows in enumerate(batch) if len(rows.tokens) <= SHORT]
        passes = [[place] for place in range(len(batch)) if place not in short]
        if short:
            passes.append(short)
        found: dict[int, Logits] = {}
        for places in passes:
            found.update(zip(places, self._forward([batch[at] for at in places]), strict=True))
        return [found[place] for place in range(len(batch))]

    def _forward(self, batch: Sequence[Rows]) -> list[Logits]:
        this = self._layout.plan(batch)
        logit_rows = self._bind(this)
        if self._ranks:
            self._put_ranking(batch, logit_rows)
        self._request.infer()
        kind = ELEMENTS[self._kv.kind]
        rows = len(this.tokens)
        self._kv.write(
            this.destination,
            self._get("keys")[:, :rows].view(kind),
            self._get("values")[:, :rows].view(kind),
        )
        return self._logits(batch)

    def know_costs(self, costs: RowCosts) -> None:
        super().know_costs(costs)
        a = self.architecture
        self._feed = Feed(a.group, a.kv_heads, RowPadding(costs))

    def _bind(self, this: Pass) -> int:
        """Hand the pass to the graph; returns how many rows it gives logits of, padding and all."""
        (attended,) = this.groups
        if attended.lanes != self._bound_lanes:
            for name, tensor in self._kv.tensors(attended.lanes).items():
                self._request.set_tensor(name, tensor)
            self._bound_lanes = attended.lanes
        inputs = self._feed.inputs(this)
        for name, values in inputs.items():
            self._put(name, values)
        return len(inputs["logit_rows"])

    def _put_ranking(self, batch: Sequence[Rows], logit_rows: int) -> None:
        """What is to be ranked; rows that ask for nothing are ranked as they are."""
        asked = [rows.ranking or _NO_RANKING for rows in batch]
        count = max(ranking.count for ranking in asked)
        self._put("count", np.array(min(count, most_ranked(self.vocabulary))))
        if all(ranking.noise is None for ranking in asked):
            self._put("temperature", np.ones((1, 1)))
            self._put("noise", np.zeros((1, 1)))
            return
        temperature = np.ones((logit_rows, 1))
        noise = np.zeros((logit_rows, self.vocabulary), np.float32)
        at = 0
        for ranking, rows in zip(asked, batch, strict=True):
            part = slice(at, at + rows.wanted)
            temperature[part] = ranking.temperature
            if ranking.noise is not None:
                noise[part] = ranking.noise
            at = part.stop
        self._put("temperature", temperature)
        self._put("noise", noise)

    def _put(self, name: str, values: NDArray[Any]) -> None:
        """Write an input; its tensor stays while its shape does."""
        inside = self._inputs.get(name)
        if inside is None or inside.shape != values.shape:
            kind = ov.Type.f32 if name in _REAL_INPUTS else ov.Type.i32
            tensor = ov.Tensor(kind, list(values.shape))
            self._request.set_tensor(name, tensor)
            self._inputs[name] = inside = tensor.data
        inside[...] = values

    def _get(self, name: str) -> NDArray[Any]:
        data: NDArray[Any] = self._request.get_tensor(name).data
        return data

    def _logits(self, batch: Sequence[Rows]) -> list[Logits]:
        found: list[Logits] = []
        at = 0
        for rows in batch:
            count = rows.wanted
            part = slice(at, at + count)
            # The next pass overwrites these buffers.
            if rows.ranking is not None and self._ranks:
                wanted = (part, slice(rows.ranking.count))
                ids = self._get("ids")[wanted].astype(np.int64)
                found.append(RankedIds(ids, self._get("log_probabilities")[wanted].copy()))
            else:
                found.append(ArrayLogits(self._get("logits")[part].copy()))
            at += count
        return found


class ArrayLogits:
    """Logits of one session's rows, [rows, vocabulary] float32."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self._values = values

    def row(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._values[index]
        return row

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        raise TypeError("only an engine whose sessions hold growing trees ranks (Rows.ranking)")


class RankedIds:
    """The likeliest ids of one session's rows, [rows, best], and their log-probabilities."""

    def __init__(self, ids: NDArray[np.int64], log_probabilities: NDArray[np.float32]) -> None:
        self._ids = ids
        self._log_probabilities = log_probabilities

    def row(self, index: int) -> NDArray[np.float32]:
        raise TypeError("only the likeliest ids of these rows were asked for (Rows.ranking)")

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._ids, self._log_probabilities


def compile_graph(graph: ov.Model, options: EngineOptions) -> ov.CompiledModel:
    """A graph made to run on the processor with the options' threads and precision."""
    precision = ov.Type.f32 if options.dtype == "float32" else ov.Type.bf16
    compiled: ov.CompiledModel = ov.Core().compile_model(
        graph,
        "CPU",
        {
            hint.inference_precision: precision,
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            hint.enable_cpu_pinning: False,
            properties.inference_num_threads: options.threads,
            properties.streams.num: 1,
            _PREPARED_CAPACITY: _PREPARED_OPERATORS,
        },
    )
    return compiled


def _kv_type(dtype: str) -> ov.Type:
    return ov.Type.f32 if dtype == "float32" else ov.Type.bf16
