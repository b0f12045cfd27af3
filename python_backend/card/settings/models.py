"""The models: where their files are, what runs them, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from card.cores import usable_cores
from card.settings.section import Section

DECIDED = {
    "model": "path",
    "tokenizer": "path",
    "runner": "CARD",
    "dtype": "dtype",
    "max_model_len": "limits.context_tokens",
    "max_num_seqs": "cache.slots",
    "max_logprobs": "limits.top_log_probs",
    "speculative_config": "speculation",
    "skip_tokenizer_init": "CARD",
    "generation_config": "the request",
    "async_scheduling": "CARD",
    "data_parallel_size": "the number of services",
    "disable_log_stats": "CARD",
}
"""Arguments of vLLM that a section `vllm` does not take, and what decides them."""

_OF_CODE = "trust_remote_code"


class VllmSettings(Section):
    """The model under vLLM (docs/vllm.md); any other field is an argument of vLLM's `EngineArgs`,
    such as `tensor_parallel_size` or `quantization`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    # Not a path to the settings, which follow links: this link makes the environment.
    python: str | None = Field(
        None,
        description="Absolute path of the Python that has vLLM. null: that of `.venv-vllm` "
        "(scripts/setup --vllm), or else the one that runs Triton.",
    )
    devices: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="CUDA devices of the model, as `nvidia-smi` counts them; empty: none."
    )
    environment: dict[Annotated[str, Field(pattern="^(VLLM|NCCL|RAY|OMP)_[A-Z0-9_]+$")], str] = (
        Field({}, description="Environment variables of vLLM's process.")
    )
    stall_timeout_s: float = Field(
        60, gt=0, le=3600, description="vLLM is started again if one step takes longer."
    )

    @model_validator(mode="after")
    def _only_what_it_decides(self) -> VllmSettings:
        if _OF_CODE in self.arguments:
            raise ValueError(f"{_OF_CODE} is not taken: CARD runs no code of a model")
        for name in self.arguments:
            if decides := DECIDED.get(name):
                raise ValueError(f"{name} is not set here: {decides} decides it")
        if self.python is not None and not Path(self.python).is_absolute():
            raise ValueError(f"python ({self.python}) must be an absolute path")
        return self

    @property
    def arguments(self) -> dict[str, object]:
        """Arguments of vLLM's `EngineArgs`, as they were given."""
        return dict(self.model_extra or {})


class DraftVllmSettings(VllmSettings):
    """The draft under vLLM: a main continuation a session, and side branches; any other field is an
    argument of vLLM's `EngineArgs`."""

    side_branches: int = Field(0, ge=0, le=8, description="Side branches of a session.")
    side_branch_tokens: int = Field(4, ge=1, le=64, description="Most tokens of each.")


REPOSITORY_ROOT = Path(__file__).resolve().parents[3]

EngineName = Literal["auto", "openvino", "torch", "tensorrt_llm", "vllm"]
GUESTS = ("tensorrt_llm", "vllm")
"""Engines of other projects, which schedule and sample by themselves."""
Threads = Annotated[int, Field(ge=1, le=256)]
Devices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]

_PATH = "Hugging Face directory, GGUF file, or directory with one GGUF file and no config.json."
_DEVICES = "CUDA devices of this model, one a rank, as `nvidia-smi` counts them."


def automatic_threads(threads_alone: object, cores: int | None = None) -> int:
    """Threads of a target pass for `auto`: half the cores, at most 4, a divisor of `threads_alone`.

    `threads_alone` is not validated yet: what is no number counts as 0, and is refused later.
    """
    most = min(4, max(1, (cores or usable_cores()) // 2))
    try:
        alone = int(str(threads_alone))
    except ValueError:
        alone = 0
    return next(threads for threads in range(most, 0, -1) if alone % threads == 0)


class TensorRTSettings(Section):
    """How TensorRT-LLM runs a model (docs/tensorrt_llm.md)."""

    devices: Devices = Field((0,), description=_DEVICES)
    tensor_parallel: int = Field(
        1, ge=1, le=16, description="Ranks that share the model, one device each."
    )
    kv_fraction: float = Field(
        0.85, gt=0, lt=1, description="Share of the free memory that the KV cache takes."
    )
    kv_dtype: Literal["auto", "fp8"] = Field("auto", description="auto: the model's own.")
    kv_reuse: bool = Field(True, description="Requests share KV of a common prefix.")
    batch_tokens: int = Field(8192, ge=64, le=1 << 20, description="Tokens of one pass.")
    stall_timeout_s: float = Field(
        60, gt=0, le=3600, description="The model is loaded again after so long without a token."
    )

    @model_validator(mode="after")
    def _one_device_per_rank(self) -> TensorRTSettings:
        if not len(set(self.devices)) == len(self.devices) == self.tensor_parallel:
            raise ValueError(
                f"devices {list(self.devices)} must name {self.tensor_parallel} different "
                "device(s), one per rank (tensor_parallel)"
            )
        return self


class TargetTensorRTSettings(TensorRTSettings):
    """The target under TensorRT-LLM; it verifies `speculation.rows` - 1 candidates (auto: 7)."""

    kv_reuse: bool = Field(False, description="Share KV; not yet run on hardware.")
    unproven_parameters: Literal["without_speculation", "refuse"] = Field(
        "without_speculation",
        description="What happens to requests that the runtime may not honour.",
    )
    tensor_parallel_candidates: bool = Field(
        False, description="Candidates for several ranks; not yet run on hardware."
    )


class DraftTensorRTSettings(TensorRTSettings):
    """The draft under TensorRT-LLM: a main continuation a session, and side branches."""

    devices: Devices = Field((1,), description=_DEVICES)
    side_branches: int = Field(2, ge=0, le=8, description="Side branches of a session.")
    side_branch_tokens: int = Field(8, ge=1, le=64, description="Most tokens of each.")


class ModelSettings(Section):
    """One model and what runs it."""

    path: Path = Field(description=_PATH)
    engine: EngineName | None = Field(
        None, description="What runs this model; null: the top-level `engine`."
    )
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] = Field(
        "cpu", description="cpu, cuda (the first device) or cuda:N; not for tensorrt_llm and vllm."
    )
    dtype: Literal["auto", "float16", "bfloat16", "float32", "int8", "int4"] = Field(
        "auto",
        description="auto: a GGUF file's codes (OpenVINO), else the fastest float of the device. "
        "float16 needs CUDA; int8 and int4 need OpenVINO and make another, worse model.",
    )
    weight_group: Literal[32, 128] = Field(
        32, description="Inputs that share a scale under int8 and int4."
    )
    threads: Threads = Field(1, description="Threads of one pass; not for tensorrt_llm.")


class TargetSettings(ModelSettings):
    """The model that decides the text; by default that of the chat pair."""

    path: Path = Field(REPOSITORY_ROOT / "models/target", description=_PATH)
    threads: Threads = Field(
        1,
        json_schema_extra={"default": "auto"},
        description="Threads of a pass beside a working draft. auto: half the cores, at most 4.",
    )
    threads_alone: Threads | None = Field(
        None,
        description="Threads of a pass beside an idle draft, a multiple of `threads`, used where "
        "they were faster at load. null: what the cores allow, at most 8.",
    )
    tensorrt_llm: TargetTensorRTSettings = TargetTensorRTSettings()
    vllm: VllmSettings = VllmSettings()

    @model_validator(mode="before")
    @classmethod
    def _choose_threads(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("threads", "auto") != "auto":
            return given
        return given | {"threads": automatic_threads(given.get("threads_alone"))}

    @model_validator(mode="after")
    def _equal_parts(self) -> TargetSettings:
        # A pass is cut into `threads_alone` equal parts, however many threads compute them.
        if self.threads_alone is not None and self.threads_alone % self.threads:
            raise ValueError(
                f"threads_alone ({self.threads_alone}) must be a multiple of threads "
                f"({self.threads})"
            )
        return self


class DraftSettings(ModelSettings):
    """The model that makes candidates; by default that of the chat pair. null: none."""

    path: Path = Field(REPOSITORY_ROOT / "models/draft", description=_PATH)
    mask_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="Ids of the masks of a draft that makes a block in one pass: one, or one for "
        "each place. Empty: those that its config.json names.",
    )
    taps: tuple[Annotated[int, Field(ge=-1000, le=1000)], ...] = Field(
        (),
        description="Hidden states of the target that the draft reads, as indices of "
        "`transformers`' `hidden_states`. Empty: those that its config.json names.",
    )
    tensorrt_llm: DraftTensorRTSettings = DraftTensorRTSettings()
    vllm: DraftVllmSettings = DraftVllmSettings()


class SmallDraftSettings(ModelSettings):
    """The model that drafts for the draft in its process, read with `drafter: hierarchy`."""

    path: Path = Field(REPOSITORY_ROOT / "models/draft-small", description=_PATH)
