"""A pass as the inputs of a graph."""

from __future__ import annotations

import numpy as np

from card.engines.layout import Pass
from card.engines.openvino.inputs import Inputs


def write_pass(this: Pass, rows: int, pages_of_lane: int, inputs: Inputs) -> int:
    """Write every input but what is to be ranked (see `decoder` and `attention`); returns how many
    rows the graph gives logits of.

    Padding repeats the last row: it stores what that stores, and nobody reads what comes of it.

    rows  of the pass, padding and all
    """
    needed, paths, array = len(this.tokens), this.pages, inputs.array
    assert paths is not None  # of every layout whose rows look up pages
    for name, values in (("tokens", this.tokens), ("positions", this.positions)):
        written = array(name, rows)
        written[:needed] = values
        written[needed:] = values[-1]
    # As many as the rows may ever have: each shape would be prepared anew.
    array("pages", rows * pages_of_lane)[: len(paths.table)] = paths.table
    begins = paths.begins
    count, padding = len(begins), rows - needed
    past = array("past", rows + 1)
    past[:count] = this.positions[begins]
    past[count : count + padding] = this.positions[-1]
    past[count + padding :] = 0
    first_page = array("first_page", rows + 2)
    first_page[:count] = paths.first[begins]
    first_page[count:] = first_page[count - 1]
    written = array("begins", rows + 2)
    written[:count] = begins
    written[count : count + padding + 1] = np.arange(needed, rows + 1)
    written[count + padding + 1 :] = rows
    logit_rows = np.arange(needed) if this.logit_rows is None else this.logit_rows
    array("logit_rows", len(logit_rows))[:] = logit_rows
    return len(logit_rows)
