"""The CTC drafter (arXiv 2412.00061): slots that hold a token, or nothing.

A layer reads the target's states and predicts a token or a blank for each of several slots. Repeats
of a slot, then blanks are removed, so that many rows of slots stand for the same text. The
probability of a text is the sum over them (connectionist temporal classification, Graves et al.,
2006). The slots begin behind the newest known states; of all texts only those count that
begin as the text there goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from card.engines.architecture import Architecture
from card.speculation.drafters.heads.blocks import BlockModel, HeadShape
from card.speculation.drafters.heads.formats import HeadConfig

SLOTS_PER_PLACE = 2
_LEAST = 1e-30


class Ctc(BlockModel):
    """The head; arguments as of `BlockModel`. It gives one number more: the last is the blank's."""

    reads_tokens = False
    is_aligned = False
    masks, lead = 0, 1
    causal_windows = False

    def __init__(self, config: HeadConfig, a: Architecture, shape: HeadShape) -> None:
        super().__init__(config, a, replace(shape, ids=shape.ids + 1))
        self.slots = nn.Parameter(torch.randn(SLOTS_PER_PLACE * config.block, a.hidden) / 8)

    def rows(self, newest: Tensor) -> Tensor:
        """The rows of a block, from the newest features [1, hidden]: these, and the slots."""
        return torch.cat([newest, newest + self.slots])

    def chain(
        self, hidden: Tensor, logits: Tensor, text: Sequence[tuple[int, int | None]]
    ) -> CtcChain:
        """Chooses the tokens behind a text: its tokens behind the newest known states, each with
        its place among the head's ids."""
        chain = CtcChain(torch.softmax(logits, dim=-1))
        for token, place in text:
            chain.take(token, place)
        return chain


class CtcChain:
    """The texts that begin with the tokens taken so far.

    chances  [slots, ids + 1]
    """

    def __init__(self, chances: Tensor) -> None:
        self._chances = chances
        self._last: int | None = None
        blank = chances[:, -1].tolist()
        # Of each number of slots, the probability that they stand for exactly these tokens, with a
        # blank and with a token in the last slot.
        self._blank, self._token = [1.0], [0.0]
        for chance in blank:
            self._blank.append(self._blank[-1] * chance)
            self._token.append(0.0)
        self._blanks = blank

    def logits(self) -> Tensor:
        """[1, ids] of the next token: the logarithm of the probability of all texts that begin with
        the tokens taken and this one."""
        before = self._chances.new_tensor(self._blank[:-1])
        token = self._chances.new_tensor(self._token[:-1])
        scores = (before + token) @ self._chances[:, :-1]
        if self._last is not None:  # a repeat counts only behind a blank
            scores[self._last] -= token @ self._chances[:, self._last]
        return scores.clamp(min=_LEAST).log()[None]

    def take(self, token: int, place: int | None) -> None:
        """Go on behind a token; `place` is that among the head's ids, None: it has none."""
        chances = [0.0] * len(self._blanks) if place is None else self._chances[:, place].tolist()
        blank, ends = [0.0], [0.0]
        for slot, chance in enumerate(chances):
            new = self._blank[slot] + (self._token[slot] if place != self._last else 0.0)
            blank.append((blank[-1] + ends[-1]) * self._blanks[slot])
            ends.append((ends[-1] + new) * chance)
        self._blank, self._token, self._last = blank, ends, place
