"""What CARD needs of a draft and a target, read from their files; no weight is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from card.engines.architecture import read_architecture
from card.engines.interface import EngineError
from card.engines.vocabulary import shared_vocabulary

SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


class PairError(ValueError):
    """The pair cannot be looked at; the message says which file is missing or wrong."""


class Verdict(Enum):
    """Whether the pair meets one need."""

    MET = "yes"
    LESS = "note"
    """It will be served, with less than one might expect."""
    UNMET = "no"


@dataclass(frozen=True)
class Finding:
    """One need and how the pair meets it."""

    need: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Model:
    """One Hugging Face directory.

    config      of config.json
    context     most positions of one session; None if the configuration does not say
    obstacle    why our own engines cannot run it; None if they can
    bytes       of its weights on disk
    """

    path: Path
    config: dict[str, Any]
    context: int | None
    obstacle: str | None
    bytes: int

    @classmethod
    def read(cls, path: Path) -> Model:
        """Raises `PairError` naming what is missing."""
        path = Path(os.path.realpath(path))  # `Path.resolve` raises where links lead in circles
        if not path.is_dir():
            raise PairError(f"{path} is no directory; name a Hugging Face directory")
        config = _json(path / "config.json")
        if config is None:
            raise PairError(f"{path / 'config.json'} does not exist; it says what the model is")
        if not (path / "tokenizer.json").is_file():
            raise PairError(
                f"{path / 'tokenizer.json'} does not exist; save the tokenizer in its fast form: "
                f"AutoTokenizer.from_pretrained(...).save_pretrained({str(path)!r})"
            )
        weights = list(path.glob("*.safetensors"))
        if not weights:
            raise PairError(f"{path} holds no *.safetensors; save the weights in that format")
        context = config.get("max_position_embeddings")
        obstacle = None
        try:
            context = read_architecture(path).context
        except EngineError as error:
            obstacle = str(error).removeprefix(f"{path / 'config.json'}: ")
        return cls(
            path,
            config,
            context if isinstance(context, int) else None,
            obstacle,
            sum(file.stat().st_size for file in weights),
        )

    @property
    def engine(self) -> str:
        """Which of the product's engines can run it."""
        return "auto" if self.obstacle is None else "tensorrt_llm"

    def special_tokens(self) -> dict[str, list[int]]:
        """Ids by name, as generation has them."""
        found = {**self.config, **(_json(self.path / "generation_config.json") or {})}
        return {name: _ids(found.get(name)) for name in SPECIAL_TOKENS}

    @property
    def has_chat_template(self) -> bool:
        if (self.path / "chat_template.jinja").is_file():
            return True
        return bool((_json(self.path / "tokenizer_config.json") or {}).get("chat_template"))


def check_pair(draft: Model, target: Model) -> list[Finding]:
    """Everything that can be said without loading a weight. Raises `PairError`."""
    return [
        _vocabulary(draft, target),
        _special_tokens(draft, target),
        *(_family(role, model) for role, model in (("draft", draft), ("target", target))),
        _contexts(draft, target),
        _chat_template(target),
    ]


def _vocabulary(draft: Model, target: Model) -> Finding:
    need = "one vocabulary"
    try:
        shared_vocabulary(draft.path, target.path)
    except EngineError as error:
        return Finding(need, Verdict.UNMET, str(error))
    return Finding(need, Verdict.MET, f"{target.config['vocab_size']} ids, the same tokens")


def _special_tokens(draft: Model, target: Model) -> Finding:
    need, ours, theirs = "special tokens", draft.special_tokens(), target.special_tokens()
    # Only the target's are used; a draft that ends its texts otherwise foresees the end less often.
    different = [name for name in ("bos_token_id", "eos_token_id") if ours[name] != theirs[name]]
    if different:
        said = ", ".join(f"{name} is {ours[name]} and {theirs[name]}" for name in different)
        return Finding(need, Verdict.LESS, f"{said}: the target's are used")
    if not theirs["eos_token_id"]:
        return Finding(need, Verdict.LESS, "no eos_token_id: texts end at max_tokens only")
    ends = ", ".join(map(str, theirs["eos_token_id"]))
    return Finding(need, Verdict.MET, f"texts end at id {ends}")


def _family(role: str, model: Model) -> Finding:
    family = model.config.get("model_type")
    if model.obstacle is None:
        return Finding(f"{role}'s family", Verdict.MET, f"{family}: known to our own engines")
    return Finding(
        f"{role}'s family",
        Verdict.LESS,
        f"{model.obstacle}. TensorRT-LLM on NVIDIA GPUs may know it: see its support matrix",
    )


def _contexts(draft: Model, target: Model) -> Finding:
    need = "context length"
    if draft.context is None or target.context is None:
        which = draft if draft.context is None else target
        problem = f"{which.path / 'config.json'} has no max_position_embeddings"
        return Finding(need, Verdict.UNMET, problem)
    if draft.context < target.context:
        detail = f"the draft's {draft.context} positions bound the target's {target.context}"
        return Finding(need, Verdict.LESS, detail)
    return Finding(need, Verdict.MET, f"{target.context} positions")


def _chat_template(target: Model) -> Finding:
    if target.has_chat_template:
        return Finding("chat template", Verdict.MET, "the target's tokenizer brings one")
    detail = "none: chats through the OpenAI gateway become a plain transcript"
    return Finding("chat template", Verdict.LESS, detail)


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _json(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PairError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise PairError(f"{file} must hold a JSON object")
    return content
