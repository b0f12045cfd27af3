"""Attention of a text, and of chains of rows behind many places of it.

Chains share the rows of their text. Each sees the text up to its own place and its own earlier
rows, as it does while it serves.
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor


class TextRows:
    """The first pass: every row sees those before it. Keeps keys and values by layer."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self.kept[layer] = keys, values
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys.transpose(0, 1)[None].to(queries.dtype),
            values.transpose(0, 1)[None].to(queries.dtype),
            is_causal=True,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).flatten(1)


class Chains:
    """Passes behind the text. A pass has the same number of rows for each chain, chain by chain."""

    def __init__(self, text: TextRows, seen: Tensor) -> None:
        """`seen` [chains]: how many rows of the text each chain sees."""
        self._text, self._seen = text, seen
        self._own: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def keep(self, chains: int) -> None:
        """Go on with the first `chains` chains."""
        self._seen = self._seen[:chains]

    def fork(self, chosen: Tensor) -> Chains:
        """The chosen chains; what they read from now on, these do not see."""
        other = Chains(self._text, self._seen[chosen])
        for layer, own in self._own.items():
            other._own[layer] = [(keys[chosen], values[chosen]) for keys, values in own]
        return other

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Implements `Attend` for rows [chains * rows of a chain]."""
        chains, kv_heads, size = len(self._seen), *keys.shape[1:]
        own = self._own[layer]
        own.append((keys.view(chains, -1, kv_heads, size), values.view(chains, -1, kv_heads, size)))
        own_keys = torch.cat([k[:chains] for k, _ in own], dim=1)
        own_values = torch.cat([v[:chains] for _, v in own], dim=1)
        text_keys, text_values = self._text.kept[layer]
        wanting = queries.view(chains, -1, kv_heads, queries.shape[1] // kv_heads, size)
        rows, all_rows, text = wanting.shape[1], own_keys.shape[1], len(text_keys)
        of_text = torch.einsum("crkgd,tkd->ckgrt", wanting, text_keys.to(wanting.dtype))
        of_own = torch.einsum("crkgd,cokd->ckgro", wanting, own_keys.to(wanting.dtype))
        unseen = torch.arange(text) >= self._seen[:, None]
        later = torch.ones(rows, all_rows, dtype=torch.bool).triu(all_rows - rows + 1)
        of_text = of_text.masked_fill(unseen[:, None, None, None], -torch.inf)
        of_own = of_own.masked_fill(later, -torch.inf)
        scores = torch.cat([of_text, of_own], dim=-1) * size**-0.5
        weights = torch.softmax(scores.float(), dim=-1).to(text_values.dtype)
        mixed = torch.einsum("ckgrt,tkd->crkgd", weights[..., :text], text_values)
        mixed = mixed + torch.einsum("ckgro,cokd->crkgd", weights[..., text:], own_values)
        return mixed.reshape(chains * rows, -1)
