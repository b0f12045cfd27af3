"""The eager decoder: one pass over rows of many sessions, operator by operator."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.layout import PathPass, path_tiles, rounded_up
from card.engines.options import MAX_PASS_ROWS
from card.engines.rotary import rotary_tables
from card.engines.torch.attention import TileTensors, attend
from card.engines.torch.linear import Linear
from card.engines.torch.weights import LayerWeights, Weights


class KeyValueCache:
    """Keys and values of every layer, zero at first.

    keys    per layer [lanes, kv_heads, head_size, places]: transposed, as the score product reads
            them
    values  per layer [lanes, kv_heads, places, head_size]

    A place of no confirmed entry may hold any keys and any finite values: masks hide it.
    """

    def __init__(
        self, architecture: Architecture, lanes: int, places: int, dtype: torch.dtype
    ) -> None:
        a = architecture
        self.keys = torch.zeros(a.layers, lanes, a.kv_heads, a.head_size, places, dtype=dtype)
        self.values = torch.zeros(a.layers, lanes, a.kv_heads, places, a.head_size, dtype=dtype)

    def write(self, layer: int, this: PathPass, keys: Tensor, values: Tensor) -> None:
        """Store the rows' keys and values [rows, kv_heads, head_size] of a layer.

        A hidden place weighs zero, and zero times infinity is not a number: a candidate that
        overflows would spoil other rows. So a value that is not finite is stored as zero, and its
        key as NaN: only the rows that see the place get NaN.
        """
        # `isfinite` and `where` take three times as long.
        keys = keys + (values - values)
        values = torch.nan_to_num(values, 0.0, 0.0, 0.0)
        base = 0
        for session in this.sessions:
            rows = slice(base, base + len(session.depths))
            at = slice(session.stored, session.stored + len(session.depths))
            self.keys[layer, session.lane, :, :, at] = keys[rows].permute(1, 2, 0)
            self.values[layer, session.lane, :, at] = values[rows].transpose(0, 1)
            base = rows.stop

    @torch.inference_mode()
    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lane`, from place `to` on."""
        end = to + stop - start
        self.keys[:, lane, :, :, to:end] = self.keys[:, source, :, :, start:stop].clone()
        self.values[:, lane, :, to:end] = self.values[:, source, :, start:stop].clone()

    @torch.inference_mode()
    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        moved, stop = torch.from_numpy(start + sources), start + len(sources)
        self.keys[:, lane, :, :, start:stop] = self.keys[:, lane].index_select(3, moved)
        self.values[:, lane, :, start:stop] = self.values[:, lane].index_select(2, moved)


def rms_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm of [..., size] states (Zhang and Sennrich, arXiv 1910.07467).

    `F.rms_norm` is a dozen operators on a processor. Layer norm is one, and beside its negative a
    vector has mean zero, so that its layer norm is its root-mean-square norm.
    """
    size = states.shape[-1]
    doubled = torch.cat([states, -states], dim=-1)
    return F.layer_norm(doubled, (2 * size,), weight, None, epsilon)[..., :size]


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `states` [rows, heads, head_size] by tables [rows, 1, head_size]."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine)


class Decoder:
    """Weights and code; the KV cache is an argument."""

    def __init__(
        self, architecture: Architecture, weights: Weights[Linear], positions: int
    ) -> None:
        self.architecture = architecture
        self.dtype = weights.embedding.dtype
        self._weights = weights
        self._rotary = torch.from_numpy(rotary_tables(architecture, positions)).to(self.dtype)

    def forward(self, this: PathPass, kv: KeyValueCache, row_multiple: int) -> Tensor:
        """Logits [len(logit_rows) or more, vocabulary] in the engine's dtype; stores keys and
        values.

        row_multiple  rows of every product are padded to a multiple of this
        """
        a, weights = self.architecture, self._weights
        hidden = F.embedding(_padded(this.tokens, row_multiple), weights.embedding)
        positions = _padded(this.positions, row_multiple)
        cosine, sine = self._rotary.index_select(1, positions)
        tiles = [
            TileTensors.of(tile, row_multiple)
            for tile in path_tiles(this.sessions, most=MAX_PASS_ROWS)
        ]
        for index, layer in enumerate(weights.layers):
            mixed = self._attention(index, layer, hidden, cosine, sine, this, tiles, kv)
            hidden = layer.output.plus(mixed, hidden)
            normed = rms_norm(hidden, layer.post_norm, a.norm_epsilon)
            gate_up = layer.gate_up(normed)
            gated = F.silu(gate_up[:, : a.intermediate]).mul_(gate_up[:, a.intermediate :])
            hidden = layer.down.plus(gated, hidden)
        if not len(this.logit_rows):
            return hidden.new_empty(0, a.vocabulary)
        hidden = hidden.index_select(0, _padded(this.logit_rows, row_multiple))
        return weights.head(rms_norm(hidden, weights.norm, a.norm_epsilon))

    def _attention(
        self,
        index: int,
        layer: LayerWeights[Linear],
        hidden: Tensor,
        cosine: Tensor,
        sine: Tensor,
        this: PathPass,
        tiles: list[TileTensors],
        kv: KeyValueCache,
    ) -> Tensor:
        """[rows, heads * head_size], the values that each row attends to."""
        a = self.architecture
        normed = rms_norm(hidden, layer.input_norm, a.norm_epsilon)
        states = layer.query_key_value(normed).view(-1, a.heads + 2 * a.kv_heads, a.head_size)
        rotated = states[:, : a.heads + a.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated = torch.cat(
                [
                    rms_norm(rotated[:, : a.heads], layer.query_norm, a.norm_epsilon),
                    rms_norm(rotated[:, a.heads :], layer.key_norm, a.norm_epsilon),
                ],
                dim=1,
            )
        rotated = rotate(rotated, cosine, sine)
        query, keys = rotated[:, : a.heads], rotated[:, a.heads :]
        kv.write(index, this, keys, states[:, a.heads + a.kv_heads :])
        mixed = torch.zeros(len(hidden), a.heads * a.head_size, dtype=hidden.dtype)
        for tile in tiles:
            keys, values = kv.keys[index, tile.lane], kv.values[index, tile.lane]
            mixed[tile.rows] = attend(query, keys, values, tile)
        return mixed


def _padded(values: NDArray[np.int64], multiple: int) -> Tensor:
    """The values, with the first one again until there is a multiple of so many."""
    missing = rounded_up(len(values), multiple) - len(values)
    return torch.from_numpy(np.concatenate([values, np.repeat(values[:1], missing)]))
