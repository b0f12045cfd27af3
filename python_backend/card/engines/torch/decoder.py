"""The eager decoder: one pass over rows of many sessions, operator by operator.

A row's result depends only on that row's own keys, bit for bit. A stock fused kernel sums in an
order that follows the shapes of the pass. Here every sum of attention runs in the order of absolute
position, whatever the number of rows or of masked places behind:

- bfloat16: oneDNN's products add along the summed dimension one after another, so masked places,
  which weigh exactly zero, change nothing;
- float32: the BLAS splits long sums by size, so values are summed in fixed blocks of positions.

`calibration.check_row_invariance` proves it on the machine when an engine is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.options import MAX_PASS_ROWS
from card.engines.positions import RopeScaling
from card.engines.processor import multiplies_in_tiles
from card.engines.rotary import rotary_tables
from card.engines.sessions import EXTENT_MULTIPLE, rounded_up
from card.engines.torch.paths import PathPass, PathTile, path_tiles
from card.engines.torch.weights import LayerWeights, Weights

_PACK_FOR_ROWS = 8
"""Row count that oneDNN optimises the packed order for; results do not depend on it."""

_MOST_ROWS_BESIDE_TILES = 32
"""Rows of a bfloat16 product where the processor has tiles too: oneDNN takes these for more, and
they add up in another order."""

# Looked up once: resolving an overload costs as much as a small product.
_apply = torch.ops.mkldnn._linear_pointwise.default


class Linear:
    """``y = x W^T + b``; W [outputs, inputs] packed for oneDNN halves a small model's step."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        beside_tiles = weight.dtype is torch.bfloat16 and multiplies_in_tiles()
        self._most_rows = _MOST_ROWS_BESIDE_TILES if beside_tiles else sys.maxsize
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS)

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, inputs] -> [rows, outputs]."""
        if len(inputs) > self._most_rows:
            return torch.cat([self(part) for part in torch.split(inputs, self._most_rows)])
        return _apply(  # type: ignore[no-any-return]
            inputs, self._weight, self._bias, "none", [], ""
        )


BLOCK = 64
"""Positions of a partial sum in float32; the positions that a row reads are a multiple."""


@dataclass(frozen=True, slots=True)
class TileTensors:
    """Rows along one path as tensors, made once for each pass and used by every layer.

    lane    of the KV cache
    rows    [rows] int64, the rows of the pass; the last one repeated as padding
    places  [extent] int64, the place of each position; behind the path, its last place repeated
    hidden  [rows, 1, extent] bool, positions that a row does not see, by the size of its window
            (None: no window)
    """

    lane: int
    rows: Tensor
    places: Tensor
    hidden: Mapping[int | None, Tensor]

    @classmethod
    def of(cls, tile: PathTile, row_multiple: int, windows: Iterable[int] = ()) -> TileTensors:
        session, count, path = tile.session, len(tile.rows), tile.path
        last = session.start + len(path)
        padding = (0, rounded_up(count, row_multiple) - count)
        own = np.pad(np.arange(last - count, last), padding, "edge")[:, None]
        rows = np.pad(tile.base + np.array(tile.rows), padding, "edge")
        places = np.concatenate([np.arange(session.start), path])
        places = np.pad(places, (0, rounded_up(last, EXTENT_MULTIPLE) - last), "edge")
        positions = np.arange(len(places))
        behind = positions > own
        masks: dict[int | None, NDArray[np.bool_]] = {None: behind}
        masks |= {window: behind | (positions <= own - window) for window in windows}
        return cls(
            lane=session.lane,
            rows=torch.from_numpy(rows),
            places=torch.from_numpy(places),
            hidden={window: torch.from_numpy(mask[:, None]) for window, mask in masks.items()},
        )


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tile: TileTensors,
    scale: float,
    window: int | None,
) -> Tensor:
    """[pass rows, heads, head_size] queries -> [rows of the tile, heads * head_size].

    keys, values  [kv_heads, places, head_size] of the lane
    scale         of the scores
    """
    kv_heads, rows = len(keys), len(tile.rows)
    heads, size = query.shape[1], query.shape[2]
    share = heads // kv_heads
    by_head = query.index_select(0, tile.rows).view(rows, kv_heads, share, size).transpose(0, 1)
    scaled = (by_head * scale).reshape(kv_heads, rows * share, size)
    scores = torch.bmm(scaled, keys.index_select(1, tile.places).transpose(1, 2))
    # Written over, not added to: what is hidden may be infinite, or not a number.
    by_row = scores.view(kv_heads, rows, share, len(tile.places))
    by_row.masked_fill_(tile.hidden[window], float("-inf"))
    mixed = _mix(torch.softmax(scores, dim=-1), values.index_select(1, tile.places))
    return mixed.view(kv_heads, rows, share * size).transpose(0, 1).reshape(rows, heads * size)


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """[kv_heads, rows, places] x [kv_heads, places, size] summed in the order of places."""
    if weights.dtype is not torch.float32:
        return torch.bmm(weights, values)
    heads, rows, places = weights.shape
    blocks = places // BLOCK
    partial = torch.bmm(
        weights.view(heads, rows, blocks, BLOCK).transpose(1, 2).reshape(-1, rows, BLOCK),
        values.reshape(-1, BLOCK, values.shape[-1]),
    )
    by_block = partial.view(heads, blocks, rows, -1).unbind(1)
    # One after another: `sum` orders its additions by the shape of what it sums.
    total = by_block[0].clone()
    for block in by_block[1:]:
        total += block
    return total


class KeyValueCache:
    """Keys and values of every layer, zero at first.

    entries  [2, layers, lanes, kv_heads, places, head_size]: keys, then values

    A place of no confirmed entry may hold any keys and any finite values: masks hide it.
    """

    def __init__(self, a: Architecture, lanes: int, places: int, dtype: torch.dtype) -> None:
        shape = (2, a.layers, lanes, a.kv_heads, places, a.head_size)
        self.entries = torch.zeros(shape, dtype=dtype)

    def write(self, layer: int, this: PathPass, keys: Tensor, values: Tensor) -> None:
        """Store the rows' keys and values [rows, kv_heads, head_size] of a layer.

        A hidden place weighs zero, and zero times infinity is not a number: a candidate that
        overflows would spoil other rows. So a value that is not finite is stored as zero, and its
        key as NaN: only the rows that see the place get NaN.
        """
        # `isfinite` and `where` take three times as long.
        both = torch.stack([keys + (values - values), torch.nan_to_num(values, 0.0, 0.0, 0.0)])
        base = 0
        for session in this.sessions:
            count = len(session.depths)
            at = slice(session.stored, session.stored + count)
            rows = both[:, base : base + count]
            self.entries[:, layer, session.lane, :, at] = rows.transpose(1, 2)
            base += count

    @torch.inference_mode()
    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lane`, from place `to` on."""
        moved = self.entries[:, :, source, :, start:stop].clone()
        self.entries[:, :, lane, :, to : to + stop - start] = moved

    @torch.inference_mode()
    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        moved = self.entries[:, :, lane].index_select(3, torch.from_numpy(start + sources))
        self.entries[:, :, lane, :, start : start + len(sources)] = moved


def normed(states: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Root-mean-square norm of [..., size] states (Zhang and Sennrich, arXiv 1910.07467), or
    LayerNorm where there is a bias; the states where there is no weight.

    `F.rms_norm` is a dozen operators on a processor. Layer norm is one, and beside its negative a
    vector has mean zero, so that its layer norm is its root-mean-square norm.
    """
    size = states.shape[-1]
    if weight is None:
        return states
    if weight.ndim > 1:
        return F.layer_norm(states, (size,), weight[0], weight[1], epsilon)
    doubled = torch.cat([states, -states], dim=-1)
    return F.layer_norm(doubled, (2 * size,), weight, None, epsilon)[..., :size]


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
        states[-1] = normed(hidden, weights.norm, a.norm_epsilon)
        tapped = None
        if self._taps:
            tapped = torch.cat([states[tap] for tap in self._taps], dim=-1).to(torch.bfloat16)
        if not len(this.logit_rows):
            return hidden.new_empty(0, a.vocabulary), tapped
        hidden = states[-1].index_select(0, _padded(this.logit_rows, row_multiple))
        logits = _times(weights.head(hidden), a.logit_scale)
        capped = torch.tanh(logits / a.logit_cap) * a.logit_cap if a.logit_cap else logits
        return capped, tapped

    def _added(self, linear: Linear, states: Tensor, hidden: Tensor, norm: Tensor | None) -> Tensor:
        """The residual stream with the output of attention or of the network."""
        output = normed(linear(states), norm, self.architecture.norm_epsilon)
        return hidden + _times(output, self.architecture.residual_scale)

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
        query, keys = states[:, : a.heads], states[:, a.heads : -a.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = self._normed_heads(query, layer.query_norm)
            keys = self._normed_heads(keys, layer.key_norm)
        if place.rope is not None:
            query, keys = (rotate(each, *turns[place.rope]) for each in (query, keys))
        kv.write(index, this, keys, states[:, -a.kv_heads :])
        mixed = torch.zeros(len(hidden), a.heads * a.head_size, dtype=hidden.dtype)
        for tile in tiles:
            keys, values = kv.entries[:, index, tile.lane]
            mixed[tile.rows] = attend(query, keys, values, tile, a.score_scale, place.window)
        return mixed

    def _normed_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """[rows, heads, head_size], each head or all heads of a row normalised."""
        epsilon = self.architecture.norm_epsilon
        if self.architecture.description.query_key_norm == "whole":
            return normed(heads.flatten(1), weight, epsilon).view_as(heads)
        return normed(heads, weight, epsilon)


def _times(states: Tensor, factor: float) -> Tensor:
    return states if factor == 1 else states * factor


def _padded(values: NDArray[np.int64], multiple: int) -> Tensor:
    """The values, with the first one again until there is a multiple of so many."""
    missing = rounded_up(len(values), multiple) - len(values)
    return torch.from_numpy(np.concatenate([values, np.repeat(values[:1], missing)]))
