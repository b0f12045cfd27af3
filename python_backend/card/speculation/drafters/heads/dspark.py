"""DSpark (arXiv 2607.05147), and DFlash (arXiv 2602.06036), which is DSpark without a serial head.

A block is the last tokens of a text and masks behind them. Its rows see each other, and the states
of the text before the block, which are the target's: each layer makes keys and values of them with
the same matrices as of the block's rows. So one pass predicts a token at each mask.

The serial head corrects the logits of a place by the token at the place before: it chooses the
tokens one after another, and each choice costs a product with a matrix of low rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from card.engines.architecture import Architecture
from card.speculation.drafters.heads.blocks import BlockModel, HeadShape
from card.speculation.drafters.heads.formats import HeadConfig


class DSpark(BlockModel):
    """The head; arguments as of `BlockModel`."""

    reads_tokens = True
    is_aligned = True

    def __init__(self, config: HeadConfig, a: Architecture, shape: HeadShape) -> None:
        super().__init__(config, a, shape)
        self.causal_windows = not config.window_non_causal
        self.masks = config.block - config.from_anchor
        """Masks of a block, as the head was trained."""
        self.lead = 0 if config.from_anchor else 1
        """Rows from a token of the text to the row that predicts the token behind it."""
        if config.markov_rank:
            self.markov_head = MarkovHead(config, a, shape.ids)
        if config.confidence:  # read and written, not used: trees are ranked by log-probabilities
            width = a.hidden + config.markov_rank * config.confidence_reads_token
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(width, 1)})

    def chain(
        self, hidden: Tensor, logits: Tensor, text: Sequence[tuple[int, int | None]]
    ) -> MarkovChain | None:
        """Chooses the tokens of a block behind a text; None: places are predicted independently.

        hidden  [places, hidden]
        logits  [places, ids]
        text    tokens, the last of which the block stands behind
        """
        if not hasattr(self, "markov_head"):
            return None
        return MarkovChain(self.markov_head, hidden, logits, text[-1][0])


class MarkovChain:
    """The places of a block, one after another."""

    def __init__(self, head: MarkovHead, hidden: Tensor, logits: Tensor, before: int) -> None:
        self._head, self._hidden, self._logits = head, hidden, logits
        self._before, self._place, self._state = before, 0, head.begin()

    def logits(self) -> Tensor:
        """[1, ids] of the next place."""
        row, before = slice(self._place, self._place + 1), torch.tensor([self._before])
        self._state, more = self._head(self._state, before, self._hidden[row])
        logits: Tensor = self._logits[row] + more
        return logits

    def take(self, token: int, place: int | None) -> None:
        """Go on behind a token."""
        self._before, self._place = token, self._place + 1


class MarkovHead(nn.Module):
    """Adds to the logits of a place what the token before it says, by two matrices of low rank.

    A gate may read the place's state (`gated`), and a state may run through the block (`rnn`).
    """

    def __init__(self, config: HeadConfig, a: Architecture, ids: int) -> None:
        super().__init__()
        self._kind, rank = config.markov_kind, config.markov_rank
        self.markov_w1 = nn.Embedding(a.vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, ids, bias=False)
        if self._kind == "gated":
            self.gate_proj = nn.Linear(a.hidden + rank, rank)
        if self._kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + a.hidden, 3 * rank)

    def begin(self, blocks: int = 1) -> Tensor:
        """[blocks, rank], the state before the first place."""
        return torch.zeros(blocks, self.markov_w2.in_features)

    def forward(self, state: Tensor, before: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The state behind a place, and what is added to its logits [blocks, ids].

        before  [blocks], the token before the place
        hidden  [blocks, hidden] of the place
        """
        read = self.markov_w1(before)
        if self._kind == "gated":
            read = torch.sigmoid(self.gate_proj(torch.cat([hidden, read], dim=-1))) * read
        if self._kind == "rnn":
            joint = self.joint_proj(torch.cat([state, read, hidden], dim=-1))
            gate, new, out = joint.chunk(3, dim=-1)
            share = torch.sigmoid(gate)
            state, read = share * state + (1 - share) * torch.tanh(new), torch.tanh(out)
        return state, self.markov_w2(read)
