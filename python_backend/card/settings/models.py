"""The two models of the pair: where they lie, what runs them, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from card.cores import usable_cores
from card.settings.section import Section

REPOSITORY_ROOT = Path(__file__).resolve().parents[3]

EngineName = Literal["auto", "openvino", "torch", "tensorrt_llm"]
"""``auto``: OpenVINO on a processor where it is installed, else torch."""

Devices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]


_MOST_AUTOMATIC_THREADS = 4
"""Beside the draft. Alone a target takes twice as many, and more soon wait for each other longer
than they compute."""
_MOST_DIGITS = 4
"""Of a number of threads in an environment variable; longer ones are none."""


def automatic_threads(threads_alone: object, cores: int | None = None) -> int:
    """Of a target: the other half of the cores is for the draft and for what serves. Where
    `threads_alone` is given they divide it."""
    most = min(_MOST_AUTOMATIC_THREADS, max(1, (cores or usable_cores()) // 2))
    alone = 0  # what is no number, or far too large, is refused by its own name
    if isinstance(threads_alone, int):
        alone = threads_alone
    elif (text := str(threads_alone).strip()).isdecimal() and len(text) <= _MOST_DIGITS:
        alone = int(text)
    return next(threads for threads in range(most, 0, -1) if alone % threads == 0)


class TensorRTSettings(Section):
    """How TensorRT-LLM runs a model; read only where that is its engine."""

    devices: Devices = (0,)
    """CUDA devices of this model alone, one per tensor-parallel rank, as `nvidia-smi` counts."""
    tensor_parallel: Annotated[int, Field(ge=1, le=16)] = 1
    """Ranks that share the model, a device each."""
    kv_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """Share of the memory that is free after the weights for the KV cache; where both models name
    one device, the shares together must stay below 1."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """``auto``: the model's own."""
    kv_block_tokens: Annotated[int, Field(ge=8, le=128)] = 32
    """Positions per KV block; a power of two. Requests share whole blocks of a common prefix."""
    kv_reuse: bool = True
    """Whether requests share the KV blocks of a common prefix."""
    quantization: Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9_]+$",
            json_schema_extra={"form": "a name in lower case, digits and _", "examples": ["fp8"]},
        ),
    ] = "auto"
    """What the checkpoint must be quantized to, as its hf_quant_config.json says it in lower case
    (fp8, nvfp4, w4a16_awq, ...); ``none``: not at all; ``auto``: whatever it is."""
    chunked_prefill: bool = True
    """Whether a long prompt may be read in several passes."""
    batch_tokens: Annotated[int, Field(ge=64, le=1 << 20)] = 8192
    """Most tokens of one pass; longer prompts are prefilled in chunks of at most so many."""
    cuda_graphs: bool = True
    """Whether the runtime captures its passes as CUDA graphs."""
    stall_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """With requests open and no token from any of them for so long the model is loaded again."""

    @model_validator(mode="after")
    def _one_device_per_rank(self) -> TensorRTSettings:
        if not len(set(self.devices)) == len(self.devices) == self.tensor_parallel:
            raise ValueError(
                f"devices {list(self.devices)} must name {self.tensor_parallel} different "
                "device(s), one per rank (tensor_parallel)"
            )
        if self.kv_block_tokens & (self.kv_block_tokens - 1):
            raise ValueError(f"kv_block_tokens ({self.kv_block_tokens}) must be a power of two")
        return self


class TargetTensorRTSettings(TensorRTSettings):
    """The target under TensorRT-LLM; it verifies `speculation.rows` - 1 candidates (auto: 7)."""

    kv_reuse: bool = False
    """Off until it has run on hardware: whether rejected candidates can enter shared blocks of a
    user-provided drafter was not found out, and NVIDIA's own test of it turns reuse off."""
    unproven_parameters: Literal["without_speculation", "refuse"] = "without_speculation"
    """Requests with parameters that the runtime does not promise to honour beside candidates
    (penalties, min_tokens, bad_words, return_log_probs, seed when sampling)."""
    tensor_parallel_candidates: bool = False
    """Rank 0 asks the cache and tells the other ranks. Not yet run on hardware, so a
    tensor-parallel target is refused without it."""


class DraftTensorRTSettings(TensorRTSettings):
    """The draft under TensorRT-LLM: one spine per session and a few side branches."""

    devices: Devices = (1,)
    """CUDA devices of the draft alone, one per tensor-parallel rank, as `nvidia-smi` counts."""
    side_branches: Annotated[int, Field(ge=0, le=8)] = 2
    """Side branches that grow at once per session, each a request that shares the prefix."""
    side_branch_tokens: Annotated[int, Field(ge=1, le=64)] = 8
    """How far a side branch grows."""


class ModelSettings(Section):
    """One model of the pair and where it runs."""

    path: Path
    """Hugging Face directory (config.json, *.safetensors, tokenizer.json) or GGUF file."""
    engine: EngineName | None = None
    """What runs this model; absent: the `engine` of the whole. The section `tensorrt_llm` is for
    that one; `device` and `threads` are for all others."""
    device: Annotated[
        str,
        Field(
            pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$",
            json_schema_extra={"form": "cpu, cuda or cuda:N", "examples": ["cuda:0"]},
        ),
    ] = "cpu"
    """``cpu``, ``cuda`` (the first device) or ``cuda:N``."""
    dtype: Literal["auto", "float16", "bfloat16", "float32", "int8", "int4"] = "auto"
    """``auto``: a GGUF file's codes of four and eight bits as they are (OpenVINO); else bfloat16
    where the device computes in it, or float32 on a processor and float16 on a CUDA device.
    ``float16`` is for CUDA alone. ``int8`` and ``int4`` (OpenVINO alone) quantise a checkpoint at
    load and give another, slightly worse model."""
    weight_group: Literal[32, 128] = 32
    """Inputs that share a scale in ``int8`` and ``int4``."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Intra-operation threads of this model's process."""


class TargetSettings(ModelSettings):
    """The model whose text is served; by default that of the chat pair."""

    path: Path = REPOSITORY_ROOT / "models/target"
    """Hugging Face directory or GGUF file, from the settings file's folder unless it is
    absolute; a folder that holds one GGUF file and no config.json stands for that file."""
    threads: Annotated[
        int, Field(ge=1, le=256, json_schema_extra={"or": ["auto"], "default": "auto"})
    ] = 1
    """Threads of a pass while the draft computes beside it; absent or ``auto``: one for every two
    cores, at most four."""
    threads_alone: Annotated[int, Field(ge=1, le=256)] | None = None
    """Threads of a pass while the draft has nothing to do, a multiple of `threads`; absent: the
    greatest for which there are cores, at most eight. They are used if passes were faster on them
    at load and had the same bits."""
    tensorrt_llm: TargetTensorRTSettings = TargetTensorRTSettings()

    @model_validator(mode="before")
    @classmethod
    def _choose_threads(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("threads", "auto") != "auto":
            return given
        return given | {"threads": automatic_threads(given.get("threads_alone"))}

    @model_validator(mode="after")
    def _equal_parts(self) -> TargetSettings:
        # A pass is cut into `threads_alone` equal parts, whoever computes them.
        if self.threads_alone is not None and self.threads_alone % self.threads:
            raise ValueError(
                f"threads_alone ({self.threads_alone}) must be a multiple of threads "
                f"({self.threads})"
            )
        return self


class DraftSettings(ModelSettings):
    """The model that fills the candidate cache; by default that of the chat pair."""

    path: Path = REPOSITORY_ROOT / "models/draft"
    """Hugging Face directory or GGUF file, as the target's."""
    tensorrt_llm: DraftTensorRTSettings = DraftTensorRTSettings()


class SmallDraftSettings(ModelSettings):
    """The model that drafts for the draft, in its process (`speculation.drafter: hierarchy`)."""

    path: Path = REPOSITORY_ROOT / "models/draft-small"
    """Hugging Face directory or GGUF file, as the target's; ``scripts/cut_draft.py`` makes one
    of the draft's first layers."""
