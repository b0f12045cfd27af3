"""Choosing a token: processors, filters and the shortcut past noise that cannot win."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from card.sampling import (
    History,
    InvalidLogitsError,
    SamplingParameters,
    gumbel,
    likeliest,
    log_probability,
    sample,
)
from card.sampling.filters import top_p_indices

Row = NDArray[np.float32]


def history_of(*tokens: int, output: tuple[int, ...] = ()) -> History:
    history = History(np.array(tokens, np.int64), len(tokens) + len(output) + 8)
    for token in output:
        history.append(token)
    return history


def row_of(vocabulary: int, shape: str, seed: int) -> Row:
    """A row [vocabulary] of logits as models make them, and as they do not."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(1, vocabulary + 1) / vocabulary
    profiles = {
        "decaying": -25.0 * ranks**0.3,
        "peaked": np.where(ranks <= 1 / vocabulary, 0.0, -14.0 - 4.0 * ranks),
        "flat": -0.01 * ranks,
        "tied": -np.floor(6.0 * ranks),
        "constant": np.zeros(vocabulary),
        "steep": -400.0 * ranks,
    }
    return rng.permutation(profiles[shape] + 3.0 * rng.normal()).astype(np.float32)


rows = st.builds(
    row_of,
    st.one_of(st.integers(1, 40), st.integers(380, 3000)),
    st.sampled_from(["decaying", "peaked", "flat", "tied", "constant", "steep"]),
    st.integers(0, 1 << 20),
)
temperatures = st.sampled_from([0.05, 0.3, 0.8, 1.0, 1.7, 4.0, 50.0])
seeds = st.integers(0, (1 << 64) - 1)


def by_rank(row: Row) -> NDArray[np.int64]:
    """All ids, best first, ties to the lowest id."""
    order: NDArray[np.int64] = np.lexsort((np.arange(row.size), -row))
    return order


def kept_by_sorting(row: Row, parameters: SamplingParameters) -> NDArray[np.int64]:
    """Ids that top-k and then top-p keep, ascending, from a sort of the whole row."""
    order = by_rank(row)
    if parameters.top_k:
        order = order[: parameters.top_k]
    if 0.0 < parameters.top_p < 1.0 and order.size > 1:
        values = row[order].astype(np.float64)
        # Whole numbers, as exact as the sum of so many of them can be.
        unit = 2.0 ** (53 - order.size.bit_length())
        weights = np.rint(np.exp((values - values[0]) * (1.0 / parameters.temperature)) * unit)
        before = np.cumsum(weights) - weights
        order = order[before < parameters.top_p * weights.sum()]
    return np.sort(order)


def sampled_in_full(row: Row, history: History, parameters: SamplingParameters) -> int:
    """The definition: noise for every id that the filters keep."""
    ids = kept_by_sorting(row, parameters)
    scores = (row[ids].astype(np.float64) - float(row.max())) / parameters.temperature
    scores += gumbel(parameters.seed, len(history), ids)
    return int(ids[scores.argmax()])


@given(
    rows,
    temperatures | st.sampled_from([3e37, 3e38, float(np.finfo(np.float32).max)]),
    st.sampled_from([0, 1, 2, 5, 50, 1000]),
    st.sampled_from([0.0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0]),
    seeds,
    st.integers(0, 5000),
)
@settings(max_examples=200)
def test_a_choice_is_the_best_of_what_the_filters_keep_with_noise_for_every_id(
    row: Row, temperature: float, top_k: int, top_p: float, seed: int, length: int
) -> None:
    """Though noise is drawn only where it can win, and filters sort no more than they must."""
    history = History(np.zeros(length, np.int64), length)
    parameters = SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sample(row, history, parameters) == sampled_in_full(row, history, parameters)


def test_ties_at_a_cut_go_to_the_lowest_ids() -> None:
    row = np.zeros(1000, np.float32)
    row[700] = 1.0
    for parameters in (
        SamplingParameters(temperature=100.0, top_k=4),
        # 1000 equal ids: the four best hold a probability of just over 0.004.
        SamplingParameters(temperature=100.0, top_p=0.0035),
    ):
        seen = {
            sample(row, History(np.zeros(length, np.int64), length), parameters)
            for length in range(300)
        }
        assert seen == {0, 1, 2, 700}
    assert sample(np.zeros(9, np.float32), history_of(0), SamplingParameters()) == 0


def penalised_plainly(row: Row, tokens: list[int], parameters: SamplingParameters) -> Row:
    """The penalties once more, one id at a time."""
    result = row.copy()
    for token in set(tokens):
        logit = float(row[token])
        penalty = parameters.repetition_penalty
        logit = logit / penalty if logit > 0 else logit * penalty
        logit -= parameters.presence_penalty
        logit -= parameters.frequency_penalty * tokens.count(token)
        result[token] = logit
    return result


@given(
    st.integers(0, 1 << 20),
    st.lists(st.integers(0, 29), max_size=20),
    st.lists(st.integers(0, 29), max_size=20),
    st.sampled_from([0.5, 1.0, 1.2, 3.0]),
    st.sampled_from([-1.0, 0.0, 0.7]),
    st.sampled_from([-0.5, 0.0, 0.4]),
    st.sampled_from([0.0, 0.8]),
)
def test_penalties_count_prompt_and_output(
    seed: int,
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    temperature: float,
) -> None:
    row = (3.0 * np.random.default_rng(seed).normal(size=30)).astype(np.float32)
    parameters = SamplingParameters(
        temperature=temperature, seed=seed, repetition_penalty=repetition,
        presence_penalty=presence, frequency_penalty=frequency,
    )  # fmt: skip
    plain = SamplingParameters(temperature=temperature, seed=seed)
    history = History(np.array(prompt, np.int64), len(prompt) + len(output))
    for place in range(len(output) + 1):  # asking at every length must not spoil the counts
        expected = penalised_plainly(row, prompt + output[:place], parameters)
        assert sample(row, history, parameters) == sample(expected, history, plain)
        if place < len(output):
            history.append(output[place])


@given(rows, temperatures, st.sampled_from([0.01, 0.2, 0.7, 1.0]), seeds)
def test_min_p_leaves_what_is_likely_beside_the_likeliest(
    row: Row, temperature: float, min_p: float, seed: int
) -> None:
    """And top-k and top-p choose among these."""
    scaled = (row.astype(np.float64) - row.max()) / temperature
    removed = np.where(scaled >= np.log(min_p), row, -np.inf).astype(np.float32)
    for more in ({}, {"top_k": 3}, {"top_p": 0.6}):
        asked = SamplingParameters(temperature=temperature, seed=seed, min_p=min_p, **more)
        plain = SamplingParameters(temperature=temperature, seed=seed, **more)
        assert sample(row, history_of(0), asked) == sample(removed, history_of(0), plain)


def test_a_bias_is_added_before_penalties() -> None:
    row = np.array([-1.0, 0.5, 1.0], np.float32)
    # With the bias id 0 has 3; the penalty halves it, where it would have doubled -1 before.
    parameters = SamplingParameters(logit_bias=((0, 4.0),), repetition_penalty=2.0)
    assert sample(row, history_of(0), parameters) == 0
    assert sample(row, history_of(0), SamplingParameters(logit_bias=((2, -100.0),))) == 1


@given(rows, st.integers(1, 20))
def test_the_likeliest_ids_are_the_first_of_the_sorted_row(row: Row, count: int) -> None:
    found = likeliest(row, count)
    order = np.lexsort((np.arange(row.size), -row))[:count]
    assert found.ids.tolist() == order.tolist()
    for token, value in zip(found.ids.tolist(), found.log_probabilities.tolist(), strict=True):
        assert value == log_probability(row, token)


def test_no_end_id_is_chosen_before_min_tokens() -> None:
    row = np.array([1.0, 9.0, 2.0, 8.0], np.float32)
    parameters = SamplingParameters(min_tokens=2, end_ids=(1, 3))
    assert sample(row, history_of(0, 0, 0), parameters) == 2
    assert sample(row, history_of(0, output=(2,)), parameters) == 2
    assert sample(row, history_of(0, output=(2, 2)), parameters) == 1


def test_bad_words_are_never_completed() -> None:
    row = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    parameters = SamplingParameters(bad_words=((3,), (0, 1, 2), (2, 2)))
    assert sample(row, history_of(0), parameters) == 2
    assert sample(row, history_of(0, output=(1,)), parameters) == 1, "0 1 2, across the prompt"
    assert sample(row, history_of(1, 1), parameters) == 2, "1 1 2 is another sequence"
    assert sample(row, history_of(2), parameters) == 1
    assert sample(row, history_of(1), parameters) == 2, "a history shorter than the word"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_that_leave_nothing_are_ignored(temperature: float) -> None:
    row = np.array([1.0, 30.0, 2.0], np.float32)
    everything = SamplingParameters(temperature=temperature, bad_words=((0,), (1,), (2,)))
    assert sample(row, history_of(0), everything) == 1
    row[2] = row[0] = -np.inf
    assert sample(row, history_of(0), SamplingParameters(bad_words=((1,),))) == 1


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_are_refused_rather_than_sampled(temperature: float, value: float) -> None:
    row = np.array([0.0, value, 1.0], np.float32)
    with pytest.raises(InvalidLogitsError, match=r"position 1.*token 1"):
        sample(row, history_of(0), SamplingParameters(temperature=temperature))


@given(rows)
def test_log_probability_is_the_log_softmax_of_the_row(row: Row) -> None:
    wide = row.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    token = row.size // 2
    assert log_probability(row, token) == pytest.approx(expected[token], abs=1e-4)


def test_top_p_sorts_few_values_when_a_distribution_is_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(3).normal(0, 3, 50_000).astype(np.float32)
    order = np.argsort(-values, kind="stable")
    weights = np.exp(values[order].astype(np.float64) / 5)
    size = int(np.searchsorted(weights.cumsum(), 0.99 * weights.sum())) + 1
    sizes: list[int] = []

    def noting(sort: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(array: Any) -> Any:
            sizes.append(array.size)
            return sort(array)

        return noted

    monkeypatch.setattr(np, "sort", noting(np.sort))
    monkeypatch.setattr(np, "argsort", noting(np.argsort))
    found = top_p_indices(values, 5.0, 0.99)
    assert found.tolist() == sorted(order[:size].tolist())
    assert max(sizes) <= 1024
