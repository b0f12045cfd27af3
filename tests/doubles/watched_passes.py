"""What the passes of an OpenVINO engine are, and what its products are stored in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import openvino as ov
import pytest

from card.engines import Logits, SequenceTokens
from card.engines.openvino.pages import PagedPass
from card.engines.openvino.runner import Runner


def product_types(compiled: ov.CompiledModel) -> Counter[str]:
    """How many of the products have matrices stored in which type, as the plugin runs them."""
    found: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        if node.get_rt_info()["layerType"].astype(str) == "FullyConnected":
            stored = node.input_value(1).get_node().get_rt_info()
            found[stored["runtimePrecision"].astype(str)] += 1
    return found


def recorded_passes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows of each session in every pass from now on; grows as passes are made."""
    passes: list[list[int]] = []
    run = Runner.run

    def recording(
        runner: Runner, this: PagedPass, batch: Sequence[SequenceTokens], *how: Any, **and_how: Any
    ) -> list[Logits]:
        passes.append([len(rows.tokens) for rows in batch])
        return run(runner, this, batch, *how, **and_how)

    monkeypatch.setattr(Runner, "run", recording)
    return passes
