"""The noise is a pure function of seed, position and id, and is distributed as it should be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.sampling import (
    History,
    SamplingParameters,
    gumbel,
    rank_candidates,
    sample,
)

seeds = st.integers(0, (1 << 64) - 1)
places = st.integers(0, 1 << 40)


@given(seeds, places, st.lists(st.integers(0, 1 << 18), min_size=1, max_size=40))
def test_noise_is_the_same_bit_for_bit_however_it_is_asked_for(
    seed: int, position: int, ids: list[int]
) -> None:
    together = gumbel(seed, position, ids)
    np.testing.assert_array_equal(together, [gumbel(seed, position, i) for i in ids])
    grid = gumbel(seed, np.array([[position], [position + 1]]), np.array(ids)[None, ::-1])
    assert grid.shape == (2, len(ids))
    np.testing.assert_array_equal(grid[0, ::-1], together)
    np.testing.assert_array_equal(grid[1, ::-1], gumbel(seed, position + 1, ids))


def splitmix64(start: int, index: int) -> int:
    """Output ``index`` of the published generator from ``start``, before its last step."""
    z = (start + index * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    return (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64


@given(seeds, places, st.integers(0, 1 << 18))
def test_a_seed_means_the_same_noise_in_every_release(seed: int, position: int, token: int) -> None:
    """Pinned to a second implementation: changing the noise changes all seeded texts."""
    key = seed
    for index in (1, position):
        key = splitmix64(key, index)
        key ^= key >> 31
    uniform = ((splitmix64(key, token) >> 32) + 0.5) / 2**32
    expected = -math.log(-math.log(uniform))
    assert float(gumbel(seed, position, token)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 0.0), (0.7, 0, 0.0), (1.5, 6, 0.0), (1.0, 0, 0.8), (0.9, 9, 0.9)],
)
@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_choices_are_distributed_as_softmax(
    temperature: float, top_k: int, top_p: float, over: str
) -> None:
    """Pearson's chi-square over many positions of one seed, and over many seeds."""
    draws = 4000
    row = np.random.default_rng(1).normal(scale=2.0, size=500).astype(np.float32)
    row[20:] -= 6.0
    counts = np.zeros(row.size)
    for draw in range(draws):
        length, seed = (draw, 11) if over == "positions" else (17, draw)
        parameters = SamplingParameters(
            temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
        )
        counts[sample(row, History(np.zeros(length, np.int64), length), parameters)] += 1
    order = np.argsort(-row, kind="stable")
    chance = np.exp((row[order] - row.max()) / temperature, dtype=np.float64)
    chance[top_k or row.size :] = 0.0
    chance /= chance.sum()
    if top_p:
        chance[np.cumsum(chance) - chance >= top_p] = 0.0
        chance /= chance.sum()
    assert counts[order][chance == 0.0].sum() == 0
    common = int((chance * draws >= 10).sum())  # rarer ids are counted together
    observed = np.append(counts[order][:common], counts[order][common:].sum())
    expected = draws * np.append(chance[:common], chance[common:].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = expected.size - 1
    assert freedom >= 2
    # Wilson and Hilferty's approximation of the quantile at one in ten thousand.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


@given(
    seeds,
    st.integers(0, 5000),
    st.sampled_from([0.5, 0.8, 1.0, 2.0]),
    st.sampled_from([(0, 0.0), (3, 0.0), (0, 0.7), (9, 0.8)]),
    st.integers(0, 999),
)
def test_a_draft_with_the_targets_logits_ranks_the_targets_choice_first(
    seed: int, position: int, temperature: float, filters: tuple[int, float], shape: int
) -> None:
    """Both sides draw one and the same noise, and the draft expects the target's filters."""
    row = np.random.default_rng(shape).normal(scale=3.0, size=64).astype(np.float32)
    top_k, top_p = filters
    parameters = SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    chosen = sample(row, History(np.zeros(position, np.int64), position), parameters)
    ids = np.argsort(-row)[None]
    ranked = rank_candidates(
        ids, row[ids], np.zeros(1, np.float32), np.array([position]), parameters
    )
    assert np.isfinite(ranked).all()
    assert ids[0, ranked[0].argmax()] == chosen
    assert np.exp(ranked).sum() == pytest.approx(1.0)
