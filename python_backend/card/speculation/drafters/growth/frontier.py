"""The interface of growth rules, and the default one.

Rules choose the nodes to expand next, and their children. Children are the best tokens of a
forwarded row, under the noise with which the target samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT
from card.engines import Engine, Logits, Ranking
from card.sampling import SamplingParameters, biased, rank_candidates
from card.sampling.noise import noise_of, position_key, uniform_bits
from card.speculation.drafters.interface import GrowingTree, GrowthConfig, Nodes
from card.speculation.sources.tree import score_exponent, sharpened


class Child(NamedTuple):
    """One token below a row.

    logprob  log-probability given the row, under the draft
    rank     `logprob` sharpened; the tree grows by it
    """

    token: int
    logprob: float
    rank: float


Masks = Sequence[NDArray[np.bool_]]
"""One mask for each row, [vocabulary]: the ids that may be children."""

_NEVER = np.float32(-1e30)
"""Added to the logit of a masked id: its probability is 0, and its logit stays finite."""

_KEPT = 8
"""Children kept per row: the target's token is among the best 8 of a good draft in 99 of 100
cases."""

_FILTERED_AMONG = 64
"""Likeliest ids per row to which top-k and top-p apply before noise is added."""

_COLDEST = 1e-6
"""Lower temperatures are raised to this one, which keeps float32 finite."""

UNLIKELY = math.log(0.01)
"""Children of a lower rank are not worth a node, except the best one."""


class PositionNoise:
    """The noise of the same ids at the positions of one text, drawn once each.

    ids    [ids]
    scale  factor of the noise; with 0 no noise is drawn
    bias   [ids] float32, added at every position; None: no bias
    """

    def __init__(
        self,
        seed: int,
        ids: NDArray[np.int64],
        scale: float = 1.0,
        bias: NDArray[np.float32] | None = None,
    ) -> None:
        self._seed = seed
        self.ids = ids
        self._scale = scale
        self._bias = np.float32(0.0) if bias is None else bias
        self._is_pure = bias is None and scale == 1.0
        self._drawn: dict[int, NDArray[np.float32]] = {}

    def rows(self, positions: list[int]) -> Sequence[NDArray[np.float32]]:
        """[ids] of each position, drawn lazily."""
        return _Rows(self, positions)

    def keys(self, positions: list[int]) -> NDArray[np.uint64] | None:
        """`position_key` of each position; None if a scale or a bias changes their noise."""
        if not self._is_pure:
            return None
        return np.array([position_key(self._seed, place) for place in positions], np.uint64)

    def forget(self, before: int) -> None:
        """Drop the noise of positions below `before`."""
        for position in [position for position in self._drawn if position < before]:
            del self._drawn[position]

    def at(self, position: int) -> NDArray[np.float32]:
        """[ids] of one position."""
        if position not in self._drawn:
            self._drawn[position] = self._noise(position) + self._bias
        return self._drawn[position]

    def _noise(self, position: int) -> NDArray[np.float32]:
        if not self._scale:
            return np.zeros(self.ids.size, np.float32)
        drawn = noise_of(uniform_bits(position_key(self._seed, position), self.ids))
        return (drawn * self._scale).astype(np.float32)


class _Rows(Sequence[NDArray[np.float32]]):
    """Noise at some positions."""

    def __init__(self, noise: PositionNoise, positions: list[int]) -> None:
        self._noise = noise
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> NDArray[np.float32]:  # type: ignore[override]
        return self._noise.at(self._positions[index])


def noise_for(parameters: SamplingParameters, engine: Engine) -> PositionNoise:
    """The target's noise and the request's bias for this draft, as `ranking_of` takes them."""
    ids = engine.ranked_ids
    drawn = not (parameters.is_greedy or parameters.filters)
    bias = None
    if parameters.logit_bias:
        bias = biased(np.zeros(engine.vocabulary, np.float32), parameters)[ids]
        bias /= np.float32(_temperature(parameters))
    return PositionNoise(parameters.seed, ids, 1.0 if drawn else 0.0, bias)


def ranking_of(
    positions: list[int],
    parameters: SamplingParameters,
    noise: PositionNoise,
    masks: Masks | None = None,
) -> Ranking:
    """The ranking of rows that have their children at `positions` (ignored if greedy).

    The draft adds the target's own noise to all ids that it ranks. So its first id is mostly the
    token that the target will draw (Gumbel coupling, arXiv 2408.07978).

    noise  of `noise_for`
    masks  ids that may be children of each row; None: all ids
    """
    adds = parameters.logit_bias or not (parameters.is_greedy or parameters.filters)
    added = noise.rows(positions) if adds else None
    keys = noise.keys(positions) if adds and masks is None else None
    if masks is not None:
        added = _masked(added, [mask[noise.ids] for mask in masks])
    count = _FILTERED_AMONG if _is_filtered(parameters) else _KEPT
    return Ranking(count, _temperature(parameters), added, keys)


def _masked(added: Sequence[NDArray[np.float32]] | None, masks: Masks) -> list[NDArray[np.float32]]:
    """The numbers added to each row's logits, with masked ids made impossible."""
    if added is None:
        return [np.where(mask, np.float32(0), _NEVER) for mask in masks]
    return [np.where(mask, row, _NEVER) for row, mask in zip(added, masks, strict=True)]


def worthwhile_children(found: list[Child]) -> list[Child]:
    """The children of one row that are likely enough, and always the best one."""
    return [child for child in found if child.rank > UNLIKELY] or found[:1]


def ranked_children(
    logits: Logits,
    positions: Sequence[int],
    parameters: SamplingParameters,
    masks: Masks | None = None,
) -> list[list[Child]]:
    """The children of every row, likeliest first.

    logits     of rows that were forwarded with `ranking_of` and the same other arguments
    positions  position of every row's children (ignored if greedy)
    """
    best: tuple[NDArray[np.int64], NDArray[np.floating[Any]]] = logits.best()
    if _is_filtered(parameters):
        best = _filtered(*logits.best(), positions, parameters)
    exponent = score_exponent(greedy=parameters.is_greedy)
    children = []
    for tokens, values in zip(best[0].tolist(), best[1].tolist(), strict=True):
        likely = [min(value, 0.0) for value in values]
        children.append(list(map(Child, tokens, likely, sharpened(likely, exponent))))
    if masks is None:
        return children
    return [
        [child for child in row if mask[child.token]]
        for row, mask in zip(children, masks, strict=True)
    ]


def _filtered(
    ids: NDArray[np.int64],
    log_probabilities: NDArray[np.float32],
    positions: Sequence[int],
    parameters: SamplingParameters,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best ids [rows, kept] behind top-k and top-p, and their log-probabilities."""
    normalised = np.zeros(len(ids), np.float32)
    places = np.array(positions, np.int64)
    scores = rank_candidates(ids, log_probabilities, normalised, places, parameters)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_KEPT]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _is_filtered(parameters: SamplingParameters) -> bool:
    return not parameters.is_greedy and parameters.filters


def _temperature(parameters: SamplingParameters) -> float:
    """The temperature at which the engine ranks; filters use the unscaled logits."""
    if _is_filtered(parameters) or parameters.is_greedy:
        return 1.0
    return max(parameters.temperature, _COLDEST)


UNEXPANDED = -1
"""KV entry of a node that was never forwarded, so its children are unknown."""

OpenNode = tuple[int, float, int]
"""Number, score and depth of a node."""


class TreeView(NamedTuple):
    """A growth rule's view of one session's tree.

    entry             [nodes] KV entry of every node, or `UNEXPANDED`
    rank              [nodes] rank of every node's path, by which candidates are compared
    text              prompt and committed output
    is_greedy         the target decodes greedily
    num_draft_tokens  γ of the request
    """

    tree: GrowingTree
    entry: Sequence[int]
    rank: Sequence[float]
    text: Sequence[int]
    is_greedy: bool = True
    num_draft_tokens: int = 8

    def is_open(self, node: int, depth: int) -> bool:
        """Whether `node` can be expanded now: it is unexpanded, its parent is expanded, and its
        children lie above `depth`."""
        tree = self.tree
        if self.entry[node] != UNEXPANDED or tree.depth[node] >= depth - 1:
            return False
        parent = tree.parent[node]
        return parent == ROOT or self.entry[parent] != UNEXPANDED

    def children(self) -> dict[int, list[int]]:
        """The children of each node that has any, likeliest first; children of the text's end are
        under `ROOT`."""
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(self.tree.parent):
            below.setdefault(parent, []).append(node)
        for nodes in below.values():
            nodes.sort(key=lambda node: -self.tree.score[node])
        return below


def end_of(node: int, children: dict[int, list[int]]) -> tuple[int, int]:
    """The last node of the chain of likeliest children from `node` on, and the chain's tokens."""
    length = 1
    while below := children.get(node):
        node, length = below[0], length + 1
    return node, length


class Frontier:
    """The growth rule of one session's tree. A rule without state of its own reads the tree in
    `take`, and does not override `push` and `refill`.

    shares      `copies` may add nodes
    runs_ahead  the rule mostly expands the likeliest child of the node that it expanded last, so
                that several passes may run before the next `take`
    weighs_ngrams  steps through a block that one pass made are weighed with n-grams
    """

    shares: ClassVar[bool] = False
    runs_ahead: ClassVar[bool] = False
    weighs_ngrams: ClassVar[bool] = False

    def __init__(self, config: GrowthConfig) -> None:
        self.config = config

    def push(self, node: int, score: float, depth: int) -> None:
        """Add a node that may be expanded from now on."""

    def refill(self, nodes: Iterable[OpenNode]) -> None:
        """Replace the nodes that may be expanded."""

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        """At most `width` nodes to expand now. Nodes with children below `depth`, and nodes that
        were expanded meanwhile, are dropped until the next refill."""
        raise NotImplementedError

    def hang(self, found: list[Child], depth: int) -> list[Child]:
        """The children of a row that become nodes.

        found  the children, likeliest first
        depth  depth of the row's token; -1 for the text's end
        """
        return worthwhile_children(found)

    def copies(self, view: TreeView, depth: int) -> tuple[Nodes, list[float]]:
        """The copies that are added to the tree after a pass, because nodes share their subtrees;
        and the rank of each copy given its parent.

        depth  tokens that the tree may run ahead of the text
        """
        return Nodes(), []


class BestFirst(Frontier):
    """Each pass expands the likeliest nodes of the whole tree (SpecExec, arXiv 2406.02532), which a
    heap by score holds."""

    runs_ahead = True

    def __init__(self, config: GrowthConfig) -> None:
        super().__init__(config)
        self._heap: list[tuple[float, int, int]] = []

    def push(self, node: int, score: float, depth: int) -> None:
        heappush(self._heap, (-score, node, depth))

    def refill(self, nodes: Iterable[OpenNode]) -> None:
        self._heap = [(-score, node, depth) for node, score, depth in nodes]
        heapify(self._heap)

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        taken: list[int] = []
        while self._heap and len(taken) < width:
            _, node, node_depth = heappop(self._heap)
            if node_depth < depth - 1 and view.entry[node] == UNEXPANDED:
                taken.append(node)
        return taken
