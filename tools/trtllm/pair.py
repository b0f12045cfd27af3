"""The two models, and the settings that serve them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.prompts import Prompt, read_prompts
from card.settings import REPOSITORY_ROOT
from importing.checks import Model, PairError, Verdict, check_pair

PROMPT_TOKENS = 512
"""Most of a prompt."""

_SHARED_FRACTIONS = {"target": 0.5, "draft": 0.3}
"""Of the free memory, for the KV cache of each model where both have one device."""


@dataclass(frozen=True)
class Devices:
    """CUDA devices by number."""

    target: int
    draft: int


@dataclass(frozen=True)
class Pair:
    """A draft and a target that CARD can serve together."""

    target: Model
    draft: Model

    @classmethod
    def imported(cls, target: str, draft: str) -> Pair:
        """Of folders, or of names on Hugging Face. Raises `PairError` naming what does not fit."""
        found = cls(Model.read(_folder(target)), Model.read(_folder(draft)))
        for finding in check_pair(found.draft, found.target):
            if finding.verdict is Verdict.UNMET:
                raise PairError(f"{finding.need}: {finding.detail}")
        return found

    @property
    def end_id(self) -> int:
        """The token that ends a text. Raises `PairError` where nothing names one."""
        for ids in self.target.ends.values():
            if ids:
                return ids[0]
        raise PairError(f"{self.target.path}: no file names the token that ends a text")

    def prompts(self, count: int) -> list[Prompt]:
        """Of those that have room, the first `count`."""
        file = REPOSITORY_ROOT / "benchmarks/prompts.jsonl"
        found = read_prompts(file, self.target.files.tokenizer(), None)
        return [prompt for prompt in found if len(prompt.tokens) <= PROMPT_TOKENS][:count]

    def text_of(self, tokens: list[int]) -> str:
        return str(self.target.files.tokenizer().decode(tokens, skip_special_tokens=True))

    def write_settings(self, file: Path, devices: Devices, streams: int, max_tokens: int) -> None:
        """Those of a service of TensorRT-LLM with both models."""
        content = {
            "engine": "tensorrt_llm",
            "target": _section(self.target, devices.target, "target", devices),
            "draft": _section(self.draft, devices.draft, "draft", devices),
            "speculation": {"rows": 8, "depth": 16},
            "cache": {"slots": streams},
            "limits": {
                "prompt_tokens": PROMPT_TOKENS,
                "max_tokens": max_tokens,
                "context_tokens": PROMPT_TOKENS + max_tokens,
            },
            "serving": {"load_timeout_s": 900},
        }
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _section(model: Model, device: int, role: str, devices: Devices) -> dict[str, object]:
    runtime: dict[str, object] = {"devices": [device]}
    if devices.target == devices.draft:
        runtime["kv_fraction"] = _SHARED_FRACTIONS[role]
    return {"path": str(model.path), "tensorrt_llm": runtime}


def _folder(name: str) -> Path:
    """A folder as it is; anything else is fetched by its name, or found in the library's cache."""
    if Path(name).exists():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PairError(
            f"{name} is no folder here and cannot be fetched: {str(error).splitlines()[0]}"
        ) from error
