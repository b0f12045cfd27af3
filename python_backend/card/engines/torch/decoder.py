"""The eager decoder: one pass over rows of many sessions, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.options import MAX_PASS_ROWS
from card.engines.positions import RopeScaling
from card.engines.rotary import rotary_tables
from card.engines.sessions import rounded_up
from card.engines.torch.attention import TileTensors, attend
from card.engines.torch.linear import Linear
from card.engines.torch.paths import PathPass, path_tiles
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


def normed(states: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """`rms_norm`, or LayerNorm where there is a bias; the states where there is no weight."""
    if weight is None:
        return states
    if weight.ndim > 1:
        return F.layer_norm(states, states.shape[-1:], weight[0], weight[1], epsilon)
    return rms_norm(states, weight, epsilon)


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first numbers of each head of `states` [rows, heads, head_size] by tables
    [rows, 1, rotated]."""
    size = cosine.shape[-1]
    if size < states.shape[-1]:
        turned = rotate(states[..., :size], cosine, sine)
        return torch.cat([turned, states[..., size:]], dim=-1)
    return torch.addcmul(states * cosine, states.roll(size // 2, -1), sine)


class Decoder:
    """Weights and code; the KV cache is an argument."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights[Linear],
        positions: int,
        taps: Sequence[int] = (),
    ) -> None:
        self.architecture = architecture
        self._taps = taps
        self.dtype = weights.embedding.dtype
        self._weights = weights
        self._places = [architecture.at(layer) for layer in range(architecture.layers)]
        self._rotary = {
            rope: torch.from_numpy(rotary_tables(rope, architecture.head_size, positions)).to(
                self.dtype
            )
            for rope in dict.fromkeys(place.rope for place in self._places)
            if rope is not None
        }

    def forward(
        self, this: PathPass, kv: KeyValueCache, row_multiple: int
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [len(logit_rows) or more, vocabulary] in the engine's dtype, and the tapped hidden
        states [rows or more, numbers] bfloat16, if there are taps; stores keys and values.

        row_multiple  rows of every product are padded to a multiple of this
        """
        a, weights = self.architecture, self._weights
        hidden = F.embedding(_padded(this.tokens, row_multiple), weights.embedding)
        hidden = _times(hidden, a.embedding_scale)
        positions = _padded(this.positions, row_multiple)
        turns = {rope: table.index_select(1, positions) for rope, table in self._rotary.items()}
        tiles = [
            TileTensors.of(tile, row_multiple, a.windows)
            for tile in path_tiles(this.sessions, most=MAX_PASS_ROWS)
        ]
        states = [hidden]
        for index, layer in enumerate(weights.layers):
            mixed = self._attention(index, layer, hidden, turns, this, tiles, kv)
            hidden = self._added(layer.output, mixed, hidden, layer.attention_norm)
            gate_up = layer.gate_up(normed(hidden, layer.post_norm, a.norm_epsilon))
            hidden = self._added(layer.down, self._gated(gate_up), hidden, layer.down_norm)
            states.append(hidden)
        tapped = self._tapped(states) if self._taps else None
        if not len(this.logit_rows):
            return hidden.new_empty(0, a.vocabulary), tapped
        hidden = hidden.index_select(0, _padded(this.logit_rows, row_multiple))
        logits = _times(weights.head(normed(hidden, weights.norm, a.norm_epsilon)), a.logit_scale)
        capped = torch.tanh(logits / a.logit_cap) * a.logit_cap if a.logit_cap else logits
        return capped, tapped

    def _tapped(self, states: Sequence[Tensor]) -> Tensor:
        last, norm = self.architecture.layers, self._weights.norm
        epsilon = self.architecture.norm_epsilon
        tapped = [
            normed(states[tap], norm, epsilon) if tap == last else states[tap] for tap in self._taps
        ]
        return torch.cat(tapped, dim=-1).to(torch.bfloat16)

    def _added(self, linear: Linear, states: Tensor, hidden: Tensor, norm: Tensor | None) -> Tensor:
        """The residual stream with the output of attention or of the network."""
        scale = self.architecture.residual_scale
        if norm is None and scale == 1:
            return linear.plus(states, hidden)
        output = normed(linear(states), norm, self.architecture.norm_epsilon)
        return hidden + _times(output, scale)

    def _gated(self, states: Tensor) -> Tensor:
        """[rows, intermediate] of gate and up, or of what has no gate."""
        a = self.architecture
        gate = states[:, : a.intermediate]
        activated = F.silu(gate) if a.activation == "silu" else F.gelu(gate, approximate="tanh")
        return activated.mul_(states[:, a.intermediate :]) if a.description.gated else activated

    def _attention(
        self,
        index: int,
        layer: LayerWeights[Linear],
        hidden: Tensor,
        turns: Mapping[RopeScaling, Tensor],
        this: PathPass,
        tiles: list[TileTensors],
        kv: KeyValueCache,
    ) -> Tensor:
        """[rows, heads * head_size], the values that each row attends to."""
        a, place = self.architecture, self._places[index]
        inputs = normed(hidden, layer.input_norm, a.norm_epsilon)
        states = layer.query_key_value(inputs).view(-1, a.heads + 2 * a.kv_heads, a.head_size)
        rotated = states[:, : a.heads + a.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated = torch.cat(
                [
                    self._normed_heads(rotated[:, : a.heads], layer.query_norm),
                    self._normed_heads(rotated[:, a.heads :], layer.key_norm),
                ],
                dim=1,
            )
        if place.rope is not None:
            rotated = rotate(rotated, *turns[place.rope])
        query, keys = rotated[:, : a.heads], rotated[:, a.heads :]
        kv.write(index, this, keys, states[:, a.heads + a.kv_heads :])
        mixed = torch.zeros(len(hidden), a.heads * a.head_size, dtype=hidden.dtype)
        for tile in tiles:
            keys, values = kv.keys[index, tile.lane], kv.values[index, tile.lane]
            mixed[tile.rows] = attend(query, keys, values, tile, a.score_scale, place.window)
        return mixed

    def _normed_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """[rows, heads, head_size], each head or all heads of a row normalised."""
        epsilon = self.architecture.norm_epsilon
        if self.architecture.description.query_key_norm == "whole":
            return rms_norm(heads.flatten(1), weight, epsilon).view_as(heads)
        return rms_norm(heads, weight, epsilon)


def _times(states: Tensor, factor: float) -> Tensor:
    return states if factor == 1 else states * factor


def _padded(values: NDArray[np.int64], multiple: int) -> Tensor:
    """The values, with the first one again until there is a multiple of so many."""
    missing = rounded_up(len(values), multiple) - len(values)
    return torch.from_numpy(np.concatenate([values, np.repeat(values[:1], missing)]))
