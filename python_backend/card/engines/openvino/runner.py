"""Runs a decoder: writes a pass into its input tensors, computes it on a number of threads, and
reads its output tensors.

One copy of the weights serves passes on one thread, beside the draft, and on every core. A graph
divides its work into a fixed number of equal parts, set at compilation. oneTBB assigns the parts to
threads, and `ThreadLimit` limits their number. The parts do not depend on the threads, so the bits
are the same.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from card.engines.interface import (
    ArrayLogits,
    Logits,
    RankedIds,
    Ranking,
    SequenceTokens,
    own_rows,
    wanted_rows,
)
from card.engines.openvino.decoder import most_ranked
from card.engines.openvino.memory import WeightMemory
from card.engines.openvino.nodes import (
    choice_of,
    is_choice,
    output_of,
)
from card.engines.openvino.pages import PagedPass

_MAX_ALLOWED_PARALLELISM = 0

MOST_PASSES_WITH_FEW = 256
"""Most consecutive passes with few threads. A pass of a graph for two threads (8 layers, paged
attention) leaves 16 to 30 KiB of notes. oneTBB reuses their memory once they are taken, but never
frees it."""
MOST_PASSES_WITH_ALL = 32
_TOOK_PART = 0.05
"""Least share of a pass's time that another thread computes if it took part. On busy cores a thread
may wake up only after the pass."""


class _Control(ctypes.Structure):
    """A `tbb::global_control`. The smallest value of all existing ones is in effect."""

    _fields_ = (
        ("value", ctypes.c_size_t),
        ("reserved", ctypes.c_ssize_t),
        ("parameter", ctypes.c_int),
    )


class ThreadLimit:
    """Limits the computing threads of this process, for all graphs together."""

    def __init__(self, tbb: ctypes.CDLL) -> None:
        # Mangled names, because only the C++ header exposes the class.
        self._create = tbb["_ZN3tbb6detail2r16createERNS0_2d114global_controlE"]
        self._destroy = tbb["_ZN3tbb6detail2r17destroyERNS0_2d114global_controlE"]
        self._control: _Control | None = None
        self._changing = threading.Lock()

    def set(self, threads: int) -> None:
        """Set the number of threads from the next pass on; 0: no limit."""
        with self._changing:
            self._set(threads)

    def _set(self, threads: int) -> None:
        before = self._control
        if threads == (before.value if before else 0):
            return
        self._control = None
        if threads:
            self._control = _Control(threads, 0, _MAX_ALLOWED_PARALLELISM)
            self._create(ctypes.byref(self._control))
        if before:
            self._destroy(ctypes.byref(before))


class PassThreads:
    """Computes passes of one graph on few of the threads that it was compiled for, or on all.

    oneTBB addresses parts of a pass to threads, with notes that only the addressed thread removes.
    A thread that may not compute removes none, so a target beside a busy draft would grow by
    megabytes a second. So after many passes with few threads, some passes use all threads, until
    every thread took part.

    limit   None: threads are not limited
    most    number of threads that the graph was compiled for
    """

    def __init__(
        self,
        limit: ThreadLimit | None,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        others_s: Callable[[], float] = lambda: time.process_time() - time.thread_time(),
    ) -> None:
        """`others_s` returns the processor time of this process's other threads, in seconds."""
        self._clock, self._others_s = clock, others_s
        self._limit = limit
        self.most = most
        self._passes_since_all = 0

    def compute(self, threads: int, infer: Callable[[], object], *, exactly: bool) -> None:
        """Call `infer` with `threads` threads (0: all). Unless `exactly` is set, some calls use all
        threads."""
        if self._limit is None:
            infer()
            return
        self._passes_since_all += 1
        is_time = self._passes_since_all > MOST_PASSES_WITH_FEW and not exactly
        if self.most == 1 or (0 < threads < self.most and not is_time):
            self._limit.set(threads)
            infer()
            return
        self._limit.set(self.most if threads else 0)
        most = MOST_PASSES_WITH_FEW + MOST_PASSES_WITH_ALL
        if self._all_take_part(infer) or self._passes_since_all >= most:
            self._passes_since_all = 0

    def _all_take_part(self, infer: Callable[[], object]) -> bool:
        """Call `infer`; whether every other thread computed meanwhile."""
        began_s, before_s = self._clock(), self._others_s()
        infer()
        worked_s = self._others_s() - before_s
        # One thread that did nothing leaves less than this, whatever the others did.
        return worked_s > (self.most - 2 + _TOOK_PART) * (self._clock() - began_s)


@dataclass(frozen=True, slots=True)
class CompiledDecoder:
    """The decoder of `rows` rows (or `ANY_ROWS`) in a compiled graph. The decoders of a graph share
    `threads`. The graph refers to the `memory` of its weights."""

    graph: ov.CompiledModel
    rows: int
    threads: PassThreads
    memory: WeightMemory

    def create_infer_request(self) -> ov.InferRequest:
        """An infer request that runs this decoder."""
        request = self.graph.create_infer_request()
        for name in (port.any_name for port in self.graph.inputs):
            if is_choice(name):
                request.set_tensor(name, ov.Tensor(np.array([name == choice_of(self.rows)])))
        return request

    def outputs(self) -> dict[str, int]:
        """Index of each output of the decoder among the graph's outputs."""
        suffix = output_of("", self.rows)
        names = [port.any_name for port in self.graph.outputs]
        return {
            name.removesuffix(suffix): index
            for index, name in enumerate(names)
            if name.endswith(suffix)
        }


_REAL_INPUTS = frozenset({"temperature", "noise"})
"""Inputs of float32; all others are int32."""


class Inputs:
    """Reuses tensors, because making and binding a tensor takes longer than writing into it.

    All shapes of an input share one block of memory, which grows. Separate blocks of changing sizes
    would leave holes, and the process would grow for many minutes.
    """

    def __init__(self, request: ov.InferRequest) -> None:
        self._request = request
        self._memory: dict[str, NDArray[Any]] = {}
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, *shape: int) -> NDArray[Any]:
        """The memory of an input, for writing. It holds the values last written in this shape; they
        are undefined if another shape was used since."""
        array = self._arrays.get(name)
        if array is None or array.shape != shape:
            kind = ov.Type.f32 if name in _REAL_INPUTS else ov.Type.i32
            array = self._block(name, math.prod(shape)).reshape(shape)
            self._request.set_tensor(name, ov.Tensor(array, list(shape), kind))
            self._arrays[name] = array
        return array

    def _block(self, name: str, size: int) -> NDArray[Any]:
        """The first `size` elements of an input's memory."""
        memory = self._memory.get(name)
        if memory is None or memory.size < size:
            kind = np.float32 if name in _REAL_INPUTS else np.int32
            memory = np.zeros(1 << max(0, size - 1).bit_length(), kind)
            self._memory[name] = memory
        return memory[:size]


def write_pass(this: PagedPass, rows: int, pages_of_lane: int, inputs: Inputs) -> int:
    """Write every input but temperature and noise (see `decoder` and `attention`); returns the
    number of rows with logits.

    Padding repeats the last row: it stores the same values, and its results are not read.

    rows  rows of the pass, with padding
    """
    needed, array = len(this.tokens), inputs.array
    for name, values in (("tokens", this.tokens), ("positions", this.positions)):
        written = array(name, rows)
        written[:needed] = values
        written[needed:] = values[-1]
    # The size is always the largest possible, because the plugin prepares each new shape.
    array("pages", rows * pages_of_lane)[: len(this.table)] = this.table
    begins = this.begins
    count, padding = len(begins), rows - needed
    past = array("past", rows + 1)
    past[:count] = this.positions[begins]
    past[count : count + padding] = this.positions[-1]
    past[count + padding :] = 0
    first_page = array("first_page", rows + 2)
    first_page[:count] = this.first[begins]
    first_page[count:] = first_page[count - 1]
    written = array("begins", rows + 2)
    written[:count] = begins
    written[count : count + padding + 1] = np.arange(needed, rows + 1)
    written[count + padding + 1 :] = rows
    array("logit_rows", len(this.logit_rows))[:] = this.logit_rows
    return len(this.logit_rows)


_NO_RANKING = Ranking(1)


_BUCKETS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 320)
"""Numbers of rows to which a decoder for any rows pads passes: it prepares again for each new
shape."""


class Runner:
    """Computes passes. It prepares again whenever a pass has another shape than the one before.

    pages_of_lane  most pages of a lane
    ids            number of ids that it ranks; None: it does not rank
    only_ranks     it returns no logits
    taps           it returns hidden states
    """

    def __init__(
        self,
        decoder: CompiledDecoder,
        pages_of_lane: int,
        ids: int | None,
        *,
        only_ranks: bool,
        taps: bool = False,
    ) -> None:
        self._request = decoder.create_infer_request()
        self._infer = partial(self._request.infer, share_outputs=True)  # spares copies
        self._rows = decoder.rows
        self._threads = decoder.threads
        self._outputs = decoder.outputs()
        self._pages_of_lane = pages_of_lane
        self._ids = ids
        self._most_ranked = most_ranked(ids) if ids else 0
        self._only_ranks, self._taps = only_ranks, taps
        self._inputs = Inputs(self._request)

    def run(
        self,
        this: PagedPass,
        batch: Sequence[SequenceTokens],
        threads: int,
        *,
        needed: int,
        exactly: bool,
    ) -> list[Logits]:
        """Compute a pass, the layout of `batch`.

        threads, exactly  as of `PassThreads.compute`
        needed            least number of rows
        """
        rows = self._rows or next((most for most in _BUCKETS if most >= needed), needed)
        logit_rows = write_pass(this, rows, self._pages_of_lane, self._inputs)
        if self._ids is not None:
            self._write_ranking(batch, logit_rows, self._ids)
        self._threads.compute(threads, self._infer, exactly=exactly)
        return self._logits(batch)

    def _logits(self, batch: Sequence[SequenceTokens]) -> list[Logits]:
        """Copies of the outputs, because the next pass overwrites them; one copy for all sessions
        if they ask for whole rows."""
        found: list[Logits] = []
        whole: NDArray[np.float32] | None = None
        states: NDArray[np.uint16] | None = None
        if self._taps:
            count = sum(len(rows.tokens) for rows in batch)
            states = self._output("states")[:count].view(np.uint16).copy()
        for own, (rows, part) in zip(own_rows(batch), wanted_rows(batch), strict=True):
            if self._only_ranks or (self._ids is not None and rows.ranking is not None):
                wanted = (part, slice((rows.ranking or _NO_RANKING).count))
                ids = self._output("ids")[wanted].astype(np.int64)
                found.append(RankedIds(ids, self._output("log_probabilities")[wanted].copy()))
            else:
                if whole is None:
                    whole = self._output("logits")[: sum(other.wanted for other in batch)].copy()
                found.append(ArrayLogits(whole[part], None if states is None else states[own]))
        return found

    def _output(self, name: str) -> NDArray[Any]:
        """An output of the last pass; the next one overwrites it."""
        data: NDArray[Any] = self._request.get_output_tensor(self._outputs[name]).data
        return data

    def _write_ranking(self, batch: Sequence[SequenceTokens], logit_rows: int, ids: int) -> None:
        """Write temperature and noise; rows without a ranking get neutral values."""
        asked = [rows.ranking or _NO_RANKING for rows in batch]
        array = self._inputs.array
        array("count")[...] = min(max(r.count for r in asked), self._most_ranked)
        first = asked[0].temperature
        if all(ranking.noise is None and ranking.temperature == first for ranking in asked):
            array("temperature", 1, 1)[...] = first
            array("noise", 1, 1)[...] = 0.0
            return
        temperature = array("temperature", logit_rows, 1)
        noise = array("noise", logit_rows, ids)
        temperature[...] = 1.0
        at = 0
        for ranking, rows in zip(asked, batch, strict=True):
            stop = at + rows.wanted
            temperature[at:stop] = ranking.temperature
            if ranking.noise is None:
                noise[at:stop] = 0.0
            else:
                noise[at:stop] = ranking.noise
            at = stop
        noise[at:] = 0.0
