"""The likeliest ids of rows of logits, with the noise of sampling drawn on the way.

A row is divided into parts of fixed size. Each part keeps its best few and the sum of its weights;
a second kernel joins those. Ties go to the lowest id.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_RANKED = 8
"""Ids of a row that are ranked, always so many."""

_PART = 2048
"""Ids of one program."""

_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)


def rank(
    logits: Tensor, factors: Tensor, scales: Tensor, keys: Tensor, out: Tensor, *, draws: bool
) -> None:
    """Ids, likeliest first, under softmax(logits * factor + scale * noise), and their
    log-probabilities.

    logits   [rows, vocabulary]
    factors  [rows] float32; 0: the row is not ranked, and nothing is written
    scales   [rows] float32, of the noise; read only if `draws`
    keys     [rows] int64, the bits of `card.sampling.noise.position_key`; read only if `draws`
    out      [2, rows, MOST_RANKED] int32: the ids, and the bits of the log-probabilities in float32
    """
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _PART)
    device = logits.device
    values = torch.empty(rows, parts, MOST_RANKED, dtype=torch.float32, device=device)
    ids = torch.empty(rows, parts, MOST_RANKED, dtype=torch.int32, device=device)
    weights = torch.empty(2, rows, parts, dtype=torch.float32, device=device)
    _rank_part[(rows, parts)](
        logits,
        factors,
        scales,
        keys,
        values,
        ids,
        weights,
        vocabulary,
        rows * parts,
        DRAWS=draws,
        PART=_PART,
        BEST=MOST_RANKED,
    )
    _join_parts[(rows,)](
        values,
        ids,
        weights,
        factors,
        out,
        out.view(torch.float32)[1],
        parts,
        rows * parts,
        PARTS=triton.next_power_of_2(parts),
        BEST=MOST_RANKED,
    )


@triton.jit
def _gumbel(key, ids):
    """-log(-log(u)) of each id under a key, as `card.sampling.noise` draws it."""
    z = ids.to(tl.uint64) * _STEP + key
    z = (z ^ (z >> 30)) * _FIRST
    z = (z ^ (z >> 27)) * _SECOND
    # In 32 bits a uniform near 1 would be 1.
    uniform = ((z >> 32).to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _rank_part(
    logits,
    factors,
    scales,
    keys,
    values,
    ids,
    weights,
    vocabulary,
    sums_at,
    DRAWS: tl.constexpr,
    PART: tl.constexpr,
    BEST: tl.constexpr,
):
    """The best of one part of a row, its largest value, and the sum of its weights beside that."""
    row = tl.program_id(0)
    factor = tl.load(factors + row)
    if factor == 0.0:
        return
    here = tl.arange(0, PART)
    token = tl.program_id(1) * PART + here
    known = token < vocabulary
    state = tl.load(logits + row.to(tl.int64) * vocabulary + token, known, 0.0)
    value = state.to(tl.float32) * factor
    if DRAWS:
        key = tl.load(keys + row).to(tl.uint64, bitcast=True)
        value += _gumbel(key, token) * tl.load(scales + row)
    value = tl.where(known, value, float("-inf"))
    part = row * tl.num_programs(1) + tl.program_id(1)
    highest = tl.max(value, 0)
    tl.store(weights + part, highest)
    tl.store(weights + sums_at + part, tl.sum(tl.exp(value - highest), 0))
    for best in tl.static_range(BEST):
        found, place = tl.max(value, 0, return_indices=True)
        tl.store(values + part * BEST + best, found)
        # No comparison holds for what is not a number: an id is never beyond the vocabulary.
        tl.store(
            ids + part * BEST + best, tl.minimum(tl.program_id(1) * PART + place, vocabulary - 1)
        )
        value = tl.where(here == place, float("-inf"), value)


@triton.jit
def _join_parts(
    values,
    ids,
    weights,
    factors,
    best_ids,
    log_probabilities,
    parts,
    sums_at,
    PARTS: tl.constexpr,
    BEST: tl.constexpr,
):
    """The best of a row among the best of its parts."""
    row = tl.program_id(0)
    if tl.load(factors + row) == 0.0:
        return
    part = tl.arange(0, PARTS)
    highest = tl.load(weights + row * parts + part, part < parts, float("-inf"))
    weight = tl.load(weights + sums_at + row * parts + part, part < parts, 0.0)
    most = tl.max(highest, 0)
    normaliser = most + tl.log(tl.sum(weight * tl.exp(highest - most), 0))
    here = tl.arange(0, PARTS * BEST)
    value = tl.load(values + row * parts * BEST + here, here < parts * BEST, float("-inf"))
    for best in tl.static_range(BEST):
        found, place = tl.max(value, 0, return_indices=True)
        place = tl.minimum(place, parts * BEST - 1)
        tl.store(best_ids + row * BEST + best, tl.load(ids + row * parts * BEST + place))
        tl.store(log_probabilities + row * BEST + best, found - normaliser)
        value = tl.where(here == place, float("-inf"), value)
