"""What loading makes of a trained pair in every type: independent rows, pages, few copies."""

from __future__ import annotations

from typing import NoReturn

import pytest
from real_pair import pair_settings

from card.engines import EngineError
from card.engines.interface import RowCosts
from card.engines.openvino import model
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.processor import computes_in_bfloat16
from card.loading import Examination, load_engine
from card.settings import Settings
from card.settings.whole import Role


def computes_in(dtype: str) -> bool:
    return dtype == "float32" or computes_in_bfloat16()


def settings_in(dtype: str) -> Settings:
    return pair_settings(
        target={"dtype": dtype},
        draft={"dtype": dtype},
        limits={"prompt_tokens": 64, "context_tokens": 336},
        cache={"slots": 2},
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_a_target_has_independent_rows_or_is_refused_with_the_remedy(
    dtype: str,
) -> None:
    """On every processor: where it does not compute in a type, rows may not be independent. What
    passes cost is no question here."""
    unmeasured = Examination(measure_row_costs=lambda _: RowCosts({1: 1.0}))
    try:
        engine = load_engine(settings_in(dtype), "target", examination=unmeasured)
    except EngineError as error:
        refusal = str(error)
    else:
        assert isinstance(engine, OpenVinoEngine)
        assert engine.row_invariant
        # In float32 its matrices stay compressed.
        assert engine.most_rows == 64 or dtype != "float32"
        return
    assert not computes_in(dtype), refusal
    assert "set target.dtype: float32" in refusal


@pytest.mark.parametrize("role", ["target", "draft"])
def test_bfloat16_is_refused_by_name_where_the_processor_does_not_compute_in_it(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "computes_in_bfloat16", lambda: False)
    with pytest.raises(EngineError, match=f"{role}.dtype is bfloat16, .* {role}.dtype: float32"):
        load_engine(settings_in("bfloat16"), role)


def test_codes_are_refused_by_name_where_onednn_may_not_multiply_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> NoReturn:
        raise RuntimeError("could not create a primitive descriptor for the inner product forward")

    monkeypatch.setattr(model, "compile_decoders", fails)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with pytest.raises(EngineError, match=r"unset ONEDNN_MAX_CPU_ISA \(AVX2\)"):
        load_engine(settings_in("int8"), "draft")
