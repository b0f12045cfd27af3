"""Paged attention (Kwon et al., arXiv 2309.06180): every row looks its places up through a table of
pages, in OpenVINO's own fused operator.

Inputs, with `sequences` = rows + 1, of which any may be empty at the end:

past         [sequences] int32, places before each sequence's first row; 0 for those at the end
begins       [sequences + 1] int32, where the rows of each sequence begin: 0, 1, ..., rows, rows
pages        [any] int32, numbers of pages, those of one path one after another
first_page   [sequences + 1] int32, where in `pages` those of each sequence begin; what stands for
             empty ones is read by nobody

The KV cache is no input: the graph refers to its memory and writes into it (`pages`).

The operator takes rows of one sequence through another kernel than a row that is alone, and adds
up in another order there. So each row of a target is a sequence of its own: its bits depend on its
position and on what lies before it, whatever shares the pass. Long chains of a draft's rows are one
sequence, which is sooner read. All entries of a pass are stored before a row looks at any, so rows
of a chain see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension

from card.engines.architecture import Architecture
from card.engines.openvino.nodes import Node, integer, integers, real
from card.engines.openvino.pages import PageMemory


class PagedAttention:
    """Stores the keys and values of a pass and lets its rows look at what they see.

    memory     of the KV cache
    positions  more than any row's; the operator keeps memory for so many, in every layer, and were
               it told those of each pass, it would grow
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
            real(size**-0.5),
            *_options(self._positions),
        ]
        attention = _PagedAttentionExtension([_output(operand) for operand in operands])
        about = attention.get_rt_info()
        for name in "kv":
            about[f"num_{name}_heads"], about[f"{name}_head_size"] = a.kv_heads, size
        return attention.output(0)


def _options(positions: int) -> list[Node]:
    """The operands behind the scale, in the operator's order: how much memory it keeps, and what it
    could do besides, turned off."""
    none, none_real = integers([]), ops.constant(np.zeros(0, np.float32))
    zero = integer(0)
    return [
        zero,  # sliding window
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
