"""How vLLM runs a model: its environment, its devices and its own arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

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
