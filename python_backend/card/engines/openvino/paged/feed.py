"""A pass as the inputs of a graph with paged attention."""

from __future__ import annotations

import numpy as np

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
        self._rows = 0

    def write(self, this: Pass) -> int:
        """Every input but the KV cache and the ranking; returns how many rows the graph gives
        logits of."""
        lane, table = this.destination.lane, self._cache.table
        self._cache.make_writable(lane, this.positions)
        self._inputs.put("pages", table.reshape(-1))
        needed = len(this.tokens)
        rows = self._padding.pad(needed)
        array = self._inputs.array
        for name, values in (("tokens", this.tokens), ("positions", this.positions)):
            written = array(name, rows)
            written[:needed] = values
            written[needed:] = values[-1]
        past = array("past", rows + 1)
        past[:-1] = array("positions", rows)
        past[-1] = 0
        first_page = array("first_page", rows + 2)
        first_page[:needed] = lane * table.shape[1]
        first_page[needed:] = first_page[needed - 1]
        if rows != self._rows:
            begins = array("begins", rows + 2)
            begins[:-1] = np.arange(rows + 1)
            begins[-1] = rows
            self._rows = rows
        logit_rows = np.arange(needed) if this.logit_rows is None else this.logit_rows
        array("logit_rows", len(logit_rows))[:] = logit_rows
        return len(logit_rows)
