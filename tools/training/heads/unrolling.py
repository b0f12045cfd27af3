"""The passes of a training step.

The first pass reads every token of a text with the target's states of the token before. In each
further pass row i reads the next token with the state that its own row computed in the pass before,
as the head does while it serves: pass s predicts a token whose s newest predecessors have no
states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from card.engines.rotary import rotary_tables
from card.speculation.drafters.heads.eagle3 import Eagle3


def unrolled(
    head: Eagle3, embedding: Tensor, text: Tensor, states: Tensor, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each pass, the logits [rows, ids] and the tokens [rows] that they should predict. Later
    passes have fewer rows.

    text    [tokens] int64
    states  [tokens, numbers]
    """
    a, count = head.architecture, len(text) - 2
    table = torch.from_numpy(rotary_tables(a.rope, a.head_size, count + steps))
    features = head.features(states[:count])
    earlier = _Earlier(a.heads // a.kv_heads, count)
    for step in range(min(steps, count)):
        rows = count - step
        earlier.begin(rows)
        turn = table[:, step : step + rows]
        tokens = text[1 + step : 1 + step + rows]
        features = head(embedding[tokens], features[:rows], (turn[0], turn[1]), earlier.attend)
        yield head.logits(features), text[2 + step : 2 + step + rows]


class _Earlier:
    """Keys and values of earlier passes. A row sees the first pass's rows up to its own, and its
    own rows of the passes behind it."""

    def __init__(self, group: int, rows: int) -> None:
        self._group, self._rows = group, rows
        self._kept: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._hidden = torch.ones(rows, rows, dtype=torch.bool).triu(1)

    def begin(self, rows: int) -> None:
        """Begin a pass with so many rows."""
        self._rows = rows

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows, scale = self._rows, queries.shape[-1] ** -0.5
        keys = keys.repeat_interleave(self._group, dim=1)
        values = values.repeat_interleave(self._group, dim=1)
        kept = self._kept[layer]
        kept.append((keys, values))
        (first_keys, first_values), *own = [(k[:rows], v[:rows]) for k, v in kept]
        scores = torch.einsum("rhd,thd->hrt", queries, first_keys)
        scores = scores.masked_fill(self._hidden[:rows, :rows], -torch.inf)
        of_own = [torch.einsum("rhd,rhd->hr", queries, k)[..., None] for k, _ in own]
        weights = torch.softmax(torch.cat([scores, *of_own], dim=-1) * scale, dim=-1)
        mixed = torch.einsum("hrt,thd->rhd", weights[..., :rows], first_values)
        for at, (_, v) in enumerate(own):
            mixed = mixed + weights[..., rows + at].T[..., None] * v
        return mixed.flatten(1)
