"""Small matrices of four bits are stored in eight, and the model computes the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from card.engines.architecture import Architecture, RopeScaling
from card.engines.checkpoints import (
    DenseMatrix,
    GroupedMatrix,
    LayerTensors,
    LinearTensors,
    SmoothedCheckpoint,
    smoothed,
)
from card.engines.checkpoints.forward import forward, inputs_of

ARCHITECTURE = Architecture(
    family="qwen2",
    vocabulary=96,
    hidden=96,
    layers=2,
    heads=6,
    kv_heads=2,
    head_size=16,
    intermediate=160,
    norm_epsilon=1e-5,
    context=256,
    tied_embeddings=True,
    query_key_norm=False,
    rope=RopeScaling("default", 10_000.0),
)
OUTLIERS = 32.0
"""Trained models have inputs that are so much larger, and beside them weights that are smaller."""


class Q41:
    """A checkpoint of random codes whose minima are no multiples of their scales.

    whole  whether they are
    """

    values = 1
    matrices_are = "Q4_1"
    kinds: Mapping[str, str] = {}
    is_grouped = True

    def __init__(self, a: Architecture, *, whole: bool = False, biases: bool = True) -> None:
        self._a = a
        self._whole = whole
        self._biases = biases

    def embedding(self) -> DenseMatrix:
        shape = self._a.vocabulary, self._a.hidden
        return DenseMatrix(np.random.default_rng(8).standard_normal(shape, np.float32))

    def head(self) -> None:
        return None

    def final_norm(self) -> NDArray[np.float32]:
        return np.ones(self._a.hidden, np.float32)

    def layers(self) -> Iterator[LayerTensors]:
        a, self._random = self._a, np.random.default_rng(7)
        query, values = a.heads * a.head_size, a.kv_heads * a.head_size
        for _ in range(a.layers):
            norm = np.ones(a.hidden, np.float32)
            norm[:32] = OUTLIERS
            size = np.ones(a.head_size, np.float32) if a.query_key_norm else None
            yield LayerTensors(
                input_norm=norm,
                query_key_value=self._linear(query + 2 * values, a.hidden),
                query_norm=size,
                key_norm=size,
                output=self._linear(a.hidden, query),
                post_norm=norm,
                gate_up=self._linear(2 * a.intermediate, a.hidden),
                down=self._linear(a.hidden, a.intermediate),
            )

    def _linear(self, outputs: int, inputs: int) -> LinearTensors:
        scale = np.full((outputs, inputs // 32), 1 / (8 * inputs**0.5), np.float32)
        scale[:, 0] /= OUTLIERS
        middle = 8.0 if self._whole else self._random.uniform(6, 9, scale.shape)
        codes = self._random.integers(0, 16, (outputs, inputs)).astype(np.uint8)
        matrix = GroupedMatrix(codes, scale, (-middle * scale).astype(np.float32), 4)
        return LinearTensors(matrix, self._normal(outputs) if self._biases else None)

    def _normal(self, *shape: int) -> NDArray[np.float32]:
        return self._random.standard_normal(shape, np.float32)


@pytest.mark.parametrize(
    "architecture",
    [ARCHITECTURE, replace(ARCHITECTURE, query_key_norm=True, kv_heads=6)],
    ids=["shared heads", "normalised heads"],
)
def test_a_smoothed_layer_computes_the_same(architecture: Architecture) -> None:
    table = Q41(architecture).embedding().dense().astype(np.float64)
    smoothed = SmoothedCheckpoint(Q41(architecture), architecture)
    for stored, layer in zip(Q41(architecture).layers(), smoothed.layers(), strict=True):
        expected, found = (
            forward(architecture, either, inputs_of(architecture, either, table), table)
            for either in (stored, layer)
        )
        error = np.sqrt(np.mean((found - expected) ** 2)) / (expected - table).std()
        assert error < 0.005  # 0.011 and more without smoothing
        # The last bits of a sum change none of these: every load computes the same text.
        assert stored.input_norm is not None
        assert layer.input_norm is not None
        powers = np.log2(stored.input_norm / layer.input_norm)
        np.testing.assert_array_equal(powers, powers.round())
        for tensors in (layer.query_key_value, layer.output):
            assert isinstance(tensors.weight, GroupedMatrix)
            assert tensors.weight.bits == 8
            assert not tensors.weight.zero_points()[1].any()


def test_a_second_load_smooths_by_what_the_first_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first = SmoothedCheckpoint(Q41(ARCHITECTURE), ARCHITECTURE)
    expected = list(first.layers())
    assert first.smoothing

    def refuse(*_: object) -> None:
        raise AssertionError("it is computed again")

    monkeypatch.setattr(smoothed, "inputs_of", refuse)
    again = SmoothedCheckpoint(Q41(ARCHITECTURE), ARCHITECTURE, first.smoothing)
    for layer, same in zip(expected, again.layers(), strict=True):
        assert layer.input_norm is not None
        assert same.input_norm is not None
        np.testing.assert_array_equal(layer.input_norm, same.input_norm)
        for ours, theirs in (
            (layer.query_key_value.weight, same.query_key_value.weight),
            (layer.output.weight, same.output.weight),
        ):
            assert isinstance(ours, GroupedMatrix)
            assert isinstance(theirs, GroupedMatrix)
            np.testing.assert_array_equal(ours.codes, theirs.codes)
            np.testing.assert_array_equal(ours.scale, theirs.scale)
    assert again.smoothing == first.smoothing
