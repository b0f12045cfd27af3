"""Which device a model runs on, and what is refused before anything is loaded.

No test here needs a GPU: what a machine shows is handed in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
import torch
from echo_kernels import echo_engine
from hypothesis import given
from hypothesis import strategies as st

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.engines.options import Dtype, EngineOptions
from card.engines.torch.captured.device import (
    Devices,
    Need,
    check_fits,
    choose_device,
    choose_dtype,
    need_of,
)
from card.engines.torch.captured.engine import CapturedEngine
from card.loading import choose_engine, load_engine
from card.settings import load_settings

WITHOUT_CUDA = Devices("2.13.0+cpu", None, ())
WITHOUT_DEVICE = Devices("2.13.0", "12.9", ())
HOPPERS = Devices("2.13.0", "12.9", ((9, 0), (9, 0)))
TURING = Devices("2.13.0", "12.9", ((7, 5),))
WITHOUT_TRITON = Devices("2.13.0", "12.9", ((9, 0),), has_triton=False)
OPTIONS = EngineOptions(context=256, sessions=4, paths=2, dtype="bfloat16", device="cuda:0")


@pytest.mark.parametrize(
    ("devices", "wanted", "named"),
    [
        (WITHOUT_CUDA, "cuda:0", ["cuda:0", "2.13.0+cpu", "without CUDA", "device: cpu"]),
        (WITHOUT_DEVICE, "cuda", ["no CUDA device", "nvidia-smi", "CUDA_VISIBLE_DEVICES"]),
        (HOPPERS, "cuda:2", ["cuda:2", "allowed: cpu, cuda:0, cuda:1"]),
        (TURING, "cuda", ["compute capability 7.5", "8.0", "set device: cpu"]),
        (WITHOUT_TRITON, "cuda", ["triton", "not installed", "pip install", "set device: cpu"]),
    ],
)
def test_device_is_refused_by_name_when_the_kernels_cannot_run_there(
    devices: Devices, wanted: str, named: list[str]
) -> None:
    with pytest.raises(EngineError) as caught:
        choose_device(wanted, devices)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("auto", torch.bfloat16),
        ("float16", torch.float16),
        ("float32", "float32 does not run on device: cuda:0; allowed: auto, bfloat16, float16"),
        ("int8", "allowed: auto, bfloat16, float16, or set device: cpu"),
    ],
)
def test_dtype_is_refused_by_name_when_the_kernels_do_not_compute_in_it(
    wanted: Dtype, found: torch.dtype | str
) -> None:
    if isinstance(found, str):
        with pytest.raises(EngineError, match=found):
            choose_dtype(wanted, torch.device("cuda:0"))
    else:
        assert choose_dtype(wanted, torch.device("cuda:0")) is found


@pytest.mark.parametrize(
    ("family", "named"),
    [
        ("gemma3_text", "the family gemma3_text with these layers does not run on CUDA"),
        ("starcoder2", "the family starcoder2 with these layers does not run on CUDA"),
        ("qwen3_yarn", "the family qwen3 with these layers does not run on CUDA"),
        ("mistral_narrow", "set limits.context_tokens to at most 24"),
    ],
)
def test_a_model_that_the_kernels_do_not_compute_is_refused_by_name(
    tmp_path: Path, family: str, named: str
) -> None:
    tiny_models.save(tmp_path, family)
    with pytest.raises(EngineError, match=named):
        CapturedEngine.load(tmp_path, OPTIONS, HOPPERS)


def test_a_device_in_the_settings_reaches_the_engine() -> None:
    settings = load_settings(target={"device": "cuda:99"}, draft={"device": "cuda"})
    assert choose_engine(settings, settings.target) == "torch"
    with pytest.raises(EngineError, match="cuda:99"):
        load_engine(settings, "target")


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama3", "smollm", "qwen3"])
def test_what_is_reckoned_is_at_least_what_is_taken(tmp_path: Path, family: str) -> None:
    tiny_models.save(tmp_path, family)
    engine = echo_engine(tmp_path, OPTIONS)
    need = need_of(read_architecture(tmp_path), OPTIONS, 2)
    stored = sum(
        tensor.nbytes // 2
        for tensor in tiny_models.build(tiny_models.FAMILIES[family]).parameters()
    )
    assert 0.9 * stored <= need.weights <= 1.1 * stored
    taken = sum(buffers.nbytes for buffers in (engine._fixed.kv.keys, engine._fixed.kv.values))
    assert taken <= need.kv(OPTIONS.sessions, OPTIONS.context) <= 1.5 * taken


def refusal(need: Need, options: EngineOptions, free: int) -> str | None:
    try:
        check_fits(Path("models/target"), "cuda:0", need, options, free)
    except EngineError as error:
        return str(error)
    return None


@given(
    slots=st.integers(1, 16), asked=st.integers(17, 64), context=st.sampled_from([256, 2304, 8192])
)
def test_the_slots_that_a_refusal_names_fit_and_no_more_do(
    slots: int, asked: int, context: int
) -> None:
    need = Need(weights=16 << 30, workspace=1 << 30, kv_position=1 << 17, spare=512)
    options = replace(OPTIONS, sessions=asked, context=context)
    free = need.total(slots, context)
    message = refusal(need, options, free)
    assert message is not None
    assert f"{slots} slot" in message
    assert refusal(need, replace(options, sessions=slots), free) is None
    assert refusal(need, replace(options, sessions=slots + 1), free) is not None
