"""The operators of a pass over static buffers.

Row invariance rests on shapes that do not vary: linear layers run over tiles of `ROW_TILE` rows,
attention over tiles of `row_multiple` rows and blocks of `BLOCK` positions, and sums over positions
are trees of elementwise additions, which no kernel can reorder. What remains free is how many of
such equal products share a call. `calibration.check_row_invariance` proves it, or refuses, on the
device at hand.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.layout import EXTENT_MULTIPLE
from card.engines.rotary import rotary_tables
from card.engines.torch.captured.kv import DeviceKeyValueCache
from card.engines.torch.captured.shapes import PassBuffer
from card.engines.torch.decoder import rotate
from card.engines.torch.kv import storable
from card.engines.torch.linear import TiledLinear
from card.engines.torch.weights import LayerWeights, Weights

BLOCK = EXTENT_MULTIPLE
"""Positions per partial sum; what is looked at is a multiple of it."""


def rms_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm of [..., size] states; `weight` stands twice in a row."""
    size = states.shape[-1]
    return F.rms_norm(states, (size,), weight[:size], epsilon)


class CapturedDecoder:
    """Weights and code; buffers and KV cache are handed in."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights[TiledLinear],
        dtype: torch.dtype,
        device: torch.device,
        positions: int,
    ) -> None:
        self.architecture = architecture
        self.device = device
        self._weights = weights
        self._rotary = torch.from_numpy(rotary_tables(architecture, positions)).to(device, dtype)

    def forward(
        self, inputs: PassBuffer, kv: DeviceKeyValueCache, tile: int, logits: Tensor | None
    ) -> None:
        """Write keys, values and logits [shape.logits, vocabulary], if any are wanted.

        tile  rows of a lane that are attended at a time
        """
        a, weights = self.architecture, self._weights
        hidden = F.embedding(inputs.integers("tokens"), weights.embedding)
        cosine, sine = self._rotary.index_select(1, inputs.integers("positions"))
        heads = torch.arange(a.kv_heads, device=hidden.device) * kv.stride
        places = (inputs.integers("places")[:, None] + heads).view(-1)
        for index, layer in enumerate(weights.layers):
            normed = rms_norm(hidden, layer.input_norm, a.norm_epsilon)
            query, *projected = self._projected(layer, normed, cosine, sine)
            keys, values = storable(*projected)
            sources = inputs.integers("sources")
            for buffers, states in ((kv.keys, keys), (kv.values, values)):
                stored = states.index_select(0, sources).view(-1, a.head_size)
                buffers[index].view(-1, a.head_size).index_copy_(0, places, stored)
            gathered = query.index_select(0, inputs.integers("gather"))
            mixed = attend(gathered, kv.keys[index], kv.values[index], inputs.visible, tile)
            hidden = layer.output.plus(mixed.index_select(0, inputs.integers("scatter")), hidden)
            normed = rms_norm(hidden, layer.post_norm, a.norm_epsilon)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = layer.down.plus(F.silu(gate) * up, hidden)
        if logits is not None:
            wanted = hidden.index_select(0, inputs.integers("logit_rows"))
            logits.copy_(weights.head(rms_norm(wanted, weights.norm, a.norm_epsilon)))

    def _projected(
        self, layer: LayerWeights[TiledLinear], normed: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each [rows, heads, head_size]."""
        a = self.architecture
        states = layer.query_key_value(normed).view(-1, a.heads + 2 * a.kv_heads, a.head_size)
        query = states[:, : a.heads]
        keys, values = states[:, a.heads :].chunk(2, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, layer.query_norm, a.norm_epsilon)
            keys = rms_norm(keys, layer.key_norm, a.norm_epsilon)
        return rotate(query, cosine, sine), rotate(keys, cosine, sine), values


def attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, tile: int) -> Tensor:
    """[lanes * attended, heads, head_size] queries -> [lanes * attended, heads * head_size].

    keys, values: [all lanes, kv_heads, stride, head_size]; visible: [lanes, attended, extent].
    """
    lanes, attended, extent = visible.shape
    kv_heads, size = keys.shape[1], keys.shape[3]
    share = query.shape[1] // kv_heads
    batch = lanes * kv_heads
    by_head = query.view(lanes, attended, kv_heads, share, size).transpose(1, 2) * size**-0.5
    seen_keys = keys[:lanes, :, :extent].flatten(0, 1)
    seen_values = values[:lanes, :, :extent].reshape(-1, BLOCK, size)
    outputs = []
    for start in range(0, attended, tile):
        rows = slice(start, start + tile)
        tiled = by_head[:, :, rows].reshape(batch, -1, size)
        scores = torch.bmm(tiled, seen_keys.transpose(1, 2)).float()
        scores = scores.view(lanes, kv_heads, -1, share, extent)
        scores = scores.masked_fill(~visible[:, None, rows, None], float("-inf"))
        weights = (scores - scores.amax(-1, keepdim=True)).exp().view(batch, -1, extent)
        blocks = weights.view(batch, -1, extent // BLOCK, BLOCK).transpose(1, 2)
        partial = torch.bmm(blocks.to(values.dtype).flatten(0, 1), seen_values)
        mixed = tree_sum(partial.float().view(batch, extent // BLOCK, -1, size))
        mixed = mixed / tree_sum(_halved(blocks))
        outputs.append(mixed.to(query.dtype).view(lanes, kv_heads, -1, share, size))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return joined.transpose(1, 2).reshape(lanes * attended, -1)


def tree_sum(parts: Tensor) -> Tensor:
    """Sum [batch, parts, ...] over the parts, neighbours first.

    Parts that are zero change no bit, however many follow, which `sum` does not promise.
    """
    while (count := parts.shape[1]) > 1:
        paired = parts[:, 0 : count - 1 : 2] + parts[:, 1::2]
        parts = torch.cat([paired, parts[:, -1:]], dim=1) if count % 2 else paired
    return parts[:, 0]


def _halved(blocks: Tensor) -> Tensor:
    """Sum [..., BLOCK] over the last dimension, half onto half: [..., 1]."""
    while (width := blocks.shape[-1]) > 1:
        blocks = blocks[..., : width // 2] + blocks[..., width // 2 :]
    return blocks
