"""Which rows one pass of training has: the tokens of a window, then chains of masks.

The chains of many anchors share the rows of their text. A mask attends to the text up to its
anchor and to its own chain up to itself, so that each chain sees what it sees while it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
Batch = Ints
"""Texts [windows, tokens]."""
_TEXT = 0


@dataclass(frozen=True)
class Chains:
    """The masks behind one window, int64 [masks] each, place by place.

    anchor  place in the window of the last token that the mask's chain knows
    place   number of the mask in its chain, from 1
    """

    anchor: Ints
    place: Ints

    @property
    def wanted(self) -> Ints:
        """Place in the window of the token that each mask predicts."""
        return self.anchor + self.place + 1


def masks_of_places(anchors: int, masks: int, keep: float, least: float) -> list[int]:
    """How many chains reach each place: PARD's conditional drop keeps ``keep ** i`` of them."""
    return [max(1, round(anchors * max(keep**place, least))) for place in range(masks)]


def choose_chains(
    likely: npt.NDArray[np.float64], counts: Sequence[int], generator: np.random.Generator
) -> Chains:
    """Choose anchors and the chains that go on.

    likely  [tokens] probability that the draft, step by step, gave to each token of the window
    counts  chains that reach each place

    A chain reaches a place in serving only if all tokens before it are right, so the chains that
    go on are drawn by that probability, without replacement (Gumbel top-k). Every kept mask has the
    masks before it, as the drop of far places requires.
    """
    masks = len(counts)
    last = len(likely) - masks - 1  # the place in the window of the last possible anchor
    anchors = generator.permutation(last)[: counts[0]]
    noise = generator.gumbel(size=len(anchors))
    reached = np.zeros(len(anchors))
    kept = np.arange(len(anchors))
    chosen = []
    for place, count in enumerate(counts, 1):
        reached += np.log(np.maximum(likely[anchors + place], 1e-6))
        kept = kept[np.argsort(-(reached + noise)[kept], kind="stable")[:count]]
        chosen.append(np.sort(anchors[kept]))
    places = [np.full(len(of), place) for place, of in enumerate(chosen, 1)]
    return Chains(np.concatenate(chosen), np.concatenate(places))


def positions(window: int, chains: Sequence[Chains]) -> Tensor:
    """Positions of all rows, int64 [windows, window + masks]."""
    return torch.from_numpy(
        np.stack([np.concatenate([np.arange(window), c.anchor + c.place]) for c in chains])
    )


def visible(window: int, chains: Sequence[Chains]) -> Tensor:
    """Which rows each row attends to, bool [windows, 1, rows, rows]."""
    text = np.arange(window)
    masks = []
    for of in chains:
        until = np.concatenate([text, of.anchor])
        place = np.concatenate([np.full(window, _TEXT), of.place])
        chain = np.concatenate([np.full(window, -1), of.anchor])
        reads = np.zeros((len(until), len(until)), dtype=bool)
        reads[:, :window] = text[None, :] <= until[:, None]
        own = chain[window:, None] == chain[None, window:]
        reads[window:, window:] = own & (place[None, window:] <= place[window:, None])
        masks.append(reads)
    return torch.from_numpy(np.stack(masks))[:, None]
