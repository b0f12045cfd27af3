"""Writes a pass into the inputs of a graph."""

from __future__ import annotations

import numpy as np

from card.engines.layout import PagedPass
from card.engines.openvino.inputs import Inputs


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
