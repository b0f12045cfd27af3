"""Paged attention (Kwon et al., arXiv 2309.06180) in OpenVINO's own fused operator: every row finds
its places through a table of pages.

Inputs, with `sequences` = rows + 1, of which any may be empty at the end:

past         [sequences] int32, places before each sequence's first row; 0 for those at the end
begins       [sequences + 1] int32, where the rows of each sequence begin: 0, 1, ..., rows, rows
pages        [any] int32, numbers of pages, path after path
first_page   [sequences + 1] int32, index in `pages` of each sequence's first page; the operator
             does not read the entries of empty sequences

The KV cache is not an input: the graph refers to its memory and writes into it (`memory`).

The operator uses one kernel for sequences of several rows and another for sequences of one row;
they add up in different orders. So each row of a target is a sequence of its own: its bits depend
only on its position and on the tokens before it. Long chains of a draft's rows are one sequence,
which is faster. The operator stores all entries of a pass before any row attends, so rows of a
chain see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension

from card.engines.architecture import Architecture
from card.engines.openvino.memory import PageMemory
from card.engines.openvino.nodes import Node, integer, integers, real


class PagedAttention:
    """Stores the keys and values of a pass and computes the attention of its rows.

    memory     memory of the KV cache
    positions  an upper bound of all positions; the operator allocates memory for this number in
               every layer, and would grow with a bound for each pass
    """

    def __init__(
        self,
        architecture: Architecture,
        memory: PageMemory,
        positions: int,
        add_input: Callable[[str, Sequence[int]], Node],
    ) -> None:
        self._a = architecture
        self._memory = memory
        self._positions = positions
        self._tables = [add_input(name, [-1]) for name in ("past", "begins", "pages", "first_page")]

    def mixed(self, layer: int, query: Node, keys: Node, values: Node) -> Node:
        """[rows, heads * head_size], the values that each row attends to.

        query   [rows, heads, 1, head_size], rotated
        keys    [rows, kv_heads, 1, head_size], rotated
        values  [rows, kv_heads * head_size]
        """
        a, size = self._a, self._a.head_size
        operands = [
            ops.reshape(query, integers([0, a.heads * size]), True),
            ops.reshape(keys, integers([0, a.kv_heads * size]), True),
            values,
            *self._memory.of_layer(layer),
            *self._tables,
            real(a.score_scale),
            *_options(self._positions, a.at(layer).window or 0),
        ]
        attention = _PagedAttentionExtension([_output(operand) for operand in operands])
        about = attention.get_rt_info()
        for name in "kv":
            about[f"num_{name}_heads"], about[f"{name}_head_size"] = a.kv_heads, size
        return attention.output(0)


def _options(positions: int, window: int) -> list[Node]:
    """The operands behind the scale, in the operator's order: the sliding window (0: none), the
    bound of positions, and neutral values for unused features."""
    none, none_real = integers([]), ops.constant(np.zeros(0, np.float32))
    zero = integer(0)
    return [
        integer(window),
        none_real,  # slopes of ALiBi
        integer(positions),
        none,  # window of aggregated scores
        *(none, none, none_real),  # turning of cached keys: pages, by how much, table
        *(none_real, zero, zero),  # sparse attention: threshold, block, stride
        none_real,  # attention sinks
        *(zero, none, none, none),  # eviction: start, sizes, sets of pages, where these begin
        none,  # kinds of tokens
        *(ops.constant(np.zeros(0, np.uint8)), none),  # mask among new rows, where each begins
    ]


def _output(node: Node) -> ov.Output:
    return node if isinstance(node, ov.Output) else node.output(0)
