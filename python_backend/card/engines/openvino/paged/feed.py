"""A pass as the inputs of a graph with paged attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.engines.layout import Pass
from card.engines.openvino.inputs import Inputs
from card.engines.openvino.paged.cache import PagedCache
from card.engines.openvino.shapes import Padding


class PagedFeed:
    """Writes passes into a graph's inputs (see `decoder` and `paged.attention`).

    Padding repeats the last row: it stores what that stores, and nobody reads what comes of it.
    """

    def __init__(self, cache: PagedCache, inputs: Inputs, padding: Padding) -> None:
        self._inputs = inputs
        self._cache = cache
        self._padding = padding

    def write(self, this: Pass) -> int:
        """Every input but the KV cache and the ranking; returns how many rows the graph gives
        logits of."""
        needed = len(this.tokens)
        rows = self._padding.pad(needed)
        array = self._inputs.array
        for name, values in (("tokens", this.tokens), ("positions", this.positions)):
            written = array(name, rows)
            written[:needed] = values
            written[needed:] = values[-1]
        begins, first = self._write_pages(this, rows)
        count, padding = len(begins), rows - needed
        past = array("past", rows + 1)
        past[:count] = this.positions[begins]
        past[count : count + padding] = this.positions[-1]
        past[count + padding :] = 0
        first_page = array("first_page", rows + 2)
        first_page[:count] = first
        first_page[count:] = first_page[count - 1]
        written = array("begins", rows + 2)
        written[:count] = begins
        written[count : count + padding + 1] = np.arange(needed, rows + 1)
        written[count + padding + 1 :] = rows
        logit_rows = np.arange(needed) if this.logit_rows is None else this.logit_rows
        array("logit_rows", len(logit_rows))[:] = logit_rows
        return len(logit_rows)

    def _write_pages(self, this: Pass, rows: int) -> tuple[NDArray[np.int64], NDArray[Any] | int]:
        """Row at which every sequence begins, and where its pages do."""
        table, paths = self._cache.table, this.pages
        if paths is None:
            lane = this.destination.lane
            self._cache.make_writable(lane, this.positions)
            self._inputs.put("pages", table.reshape(-1))
            return np.arange(len(this.tokens)), lane * table.shape[1]
        # As many as the rows may ever have: each shape would be prepared anew.
        pages = self._inputs.array("pages", rows * table.shape[1])
        pages[: len(paths.table)] = paths.table
        return paths.begins, paths.first[paths.begins]
