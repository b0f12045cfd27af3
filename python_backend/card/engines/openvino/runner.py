"""A decoder with the tensors it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.interface import Logits, Ranking, SequenceTokens
from card.engines.layout import Pass
from card.engines.logits import ArrayLogits, RankedIds
from card.engines.openvino.compiled import CompiledDecoder
from card.engines.openvino.decoder import most_ranked
from card.engines.openvino.inputs import Inputs
from card.engines.openvino.shapes import Padding

_NO_RANKING = Ranking(1)


class Cache(Protocol):
    """Keys and values of all sessions, which the graph reads in place."""

    def tensors(self) -> dict[str, ov.Tensor]:
        """The graph's inputs of them."""

    def store(self, this: Pass, output: Callable[[str], NDArray[Any]]) -> None:
        """Keep those that a pass computed; `output` gives what the graph did by name."""


class Feed(Protocol):
    """Writes passes into a graph's inputs."""

    def write(self, this: Pass) -> int:
        """Returns how many rows the graph gives logits of."""


class Runner:
    """Computes passes. It prepares anew whenever a pass has another shape than the one before.

    make_feed  given the inputs and a padding
    ranks      whether the decoder ranks
    ranked     the ids that it ranks; None: all
    padding    under masks of passes of one session, else of all
    """

    def __init__(
        self,
        decoder: CompiledDecoder,
        architecture: Architecture,
        kv: Cache,
        make_feed: Callable[[Inputs, Padding], Feed],
        *,
        ranks: bool,
        ranked: NDArray[np.int32] | None,
        padding: Padding,
    ) -> None:
        self._request = decoder.create_infer_request()
        self._infer = partial(self._request.infer, share_outputs=True)  # else each is copied too
        self._threads = decoder.threads
        self._index_of = cache(decoder.index_of)
        self._architecture = architecture
        self._kv = kv
        self._make_feed = make_feed
        self._ranks = ranks
        self._ranked = ranked
        # Once and whole: for a tensor of another size the plugin takes as much memory of its own.
        for name, tensor in kv.tensors().items():
            self._request.set_tensor(name, tensor)
        self._inputs = Inputs(self._request)
        self._feed: Feed
        self.pad_by(padding)

    def pad_by(self, padding: Padding) -> None:
        self._feed = self._make_feed(self._inputs, padding)

    def run(
        self, this: Pass, batch: Sequence[SequenceTokens], threads: int, *, exactly: bool
    ) -> list[Logits]:
        """Compute the pass that `batch` was laid out as and store its keys and values.

        threads, exactly  as of `PassThreads.compute`
        """
        logit_rows = self._feed.write(this)
        if self._ranks:
            self._write_ranking(batch, logit_rows)
        self._threads.compute(threads, self._infer, exactly=exactly)
        self._kv.store(this, self._output)
        return self._logits(batch)

    def _logits(self, batch: Sequence[SequenceTokens]) -> list[Logits]:
        """Copies, for the next pass overwrites the outputs: of all sessions at once where these ask
        for whole rows."""
        found: list[Logits] = []
        whole: NDArray[np.float32] | None = None
        at = 0
        for rows in batch:
            part = slice(at, at + rows.wanted)
            if self._ranked is not None or (self._ranks and rows.ranking is not None):
                wanted = (part, slice((rows.ranking or _NO_RANKING).count))
                ids = self._output("ids")[wanted].astype(np.int64)
                found.append(RankedIds(ids, self._output("log_probabilities")[wanted].copy()))
            else:
                if whole is None:
                    whole = self._output("logits")[: sum(other.wanted for other in batch)].copy()
                found.append(ArrayLogits(whole[part]))
            at += rows.wanted
        return found

    def _output(self, name: str) -> NDArray[Any]:
        """An output of the last pass; the next one overwrites it."""
        data: NDArray[Any] = self._request.get_output_tensor(self._index_of(name)).data
        return data

    def _write_ranking(self, batch: Sequence[SequenceTokens], logit_rows: int) -> None:
        """What is to be ranked; rows that ask for nothing are ranked as they are."""
        asked = [rows.ranking or _NO_RANKING for rows in batch]
        ids = self._architecture.vocabulary if self._ranked is None else len(self._ranked)
        array = self._inputs.array
        array("count")[...] = min(max(r.count for r in asked), most_ranked(ids))
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
