"""Checks of a draft and a target, from their files. No weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from card.engines.architecture import read_architecture
from card.engines.checkpoints import kept_lines, open_checkpoint
from card.engines.checkpoints.safetensors import weight_files
from card.engines.interface import EngineError
from card.engines.quantised import QuantisedError
from card.engines.vocabulary import shared_vocabulary
from model_files import ModelFiles, ModelFilesError, model_at, model_files_of
from model_files.cautions import template_caution
from model_files.end_ids import end_ids_by_source
from model_files.gguf.part_names import parts_of
from model_files.interface import special_tokens
from model_files.opening import real_path

_SIXTEEN_BITS = 2
"""Bytes of a weight."""


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
    """One Hugging Face directory, a GGUF file, or a model in several.

    config      under the names of Hugging Face's config.json
    context     most positions of one session; None if the configuration does not say
    obstacle    why our own engines do not know its family; None if they do
    fault       why no engine can run it: quantised weights, or files that do not fit; None: nothing
    bytes       of its weights in sixteen bits
    kept        what becomes of its matrices, a line for each type; empty: they are not quantised
    """

    files: ModelFiles
    config: dict[str, Any]
    context: int | None
    obstacle: str | None
    fault: str | None
    bytes: int
    kept: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Model:
        """Raises `PairError` naming the missing part."""
        path = real_path(path)
        if not path.exists():
            raise PairError(f"{path} does not exist; name a Hugging Face directory or a GGUF file")
        path = model_at(path)
        try:
            files = model_files_of(path)
            config = files.config()
            files.token_table()
            size = sum(file.stat().st_size for file in _weights(path))
        except (ModelFilesError, EngineError) as error:
            raise PairError(str(error)) from error
        context = config.get("max_position_embeddings")
        obstacle = fault = architecture = None
        kept: tuple[str, ...] = ()
        try:
            architecture = read_architecture(path)
            context = architecture.context
            checkpoint = open_checkpoint(path, architecture)
            size = checkpoint.values * _SIXTEEN_BITS
            if checkpoint.is_grouped:
                kept = tuple(kept_lines(checkpoint.kinds, architecture.layers))
        except EngineError as error:
            # Another engine may support the family of this directory.
            if architecture is None and path.is_dir() and not isinstance(error, QuantisedError):
                obstacle = str(error).removeprefix(f"{files.config_file}: ")
            else:
                fault = str(error)
        return cls(
            files,
            config,
            context if isinstance(context, int) else None,
            obstacle,
            fault,
            size,
            kept,
        )

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def engine(self) -> str:
        """Which of the product's engines can run it."""
        return "auto" if self.obstacle is None else "vllm"

    @cached_property
    def bos(self) -> str | None:
        """Text of the token that its texts begin with."""
        return special_tokens(self.files.tokenizer_config()).get("bos_token")

    @cached_property
    def ends(self) -> dict[str, list[int]]:
        """Ids that end a text, by the file that names them."""
        size = self.config.get("vocab_size")
        tokenizer = self.files.tokenizer()
        return end_ids_by_source(self.files, size if isinstance(size, int) else 0, tokenizer)

    @property
    def has_chat_template(self) -> bool:
        return bool(self.files.chat_template())


def _weights(path: Path) -> list[Path]:
    return weight_files(path) if path.is_dir() else parts_of(path)


def check_pair(draft: Model, target: Model) -> list[Finding]:
    """The findings about both, without loading a weight. Raises `PairError`."""
    vocabulary = _vocabulary(draft, target)
    try:
        return [
            vocabulary,
            *([] if vocabulary.verdict is Verdict.UNMET else [_special_tokens(draft, target)]),
            *(_family(role, model) for role, model in (("draft", draft), ("target", target))),
            *(
                Finding(f"{role}'s tensors", Verdict.MET, "\n".join(model.kept))
                for role, model in (("draft", draft), ("target", target))
                if model.kept
            ),
            _contexts(draft, target),
            _chat_template(target),
            *(Finding("tokenizer", Verdict.LESS, it) for it in target.files.warnings()),
        ]
    except ModelFilesError as error:
        raise PairError(str(error)) from error


def check_target(target: Model) -> list[Finding]:
    """The findings about a target alone. Raises `PairError`."""
    try:
        kept = Finding("target's tensors", Verdict.MET, "\n".join(target.kept))
        return [
            _family("target", target),
            *([kept] if target.kept else []),
            _chat_template(target),
            *(Finding("tokenizer", Verdict.LESS, it) for it in target.files.warnings()),
        ]
    except ModelFilesError as error:
        raise PairError(str(error)) from error


def _vocabulary(draft: Model, target: Model) -> Finding:
    need = "one vocabulary"
    try:
        shared = shared_vocabulary(draft.path, target.path)
    except EngineError as error:
        return Finding(need, Verdict.UNMET, str(error))
    if shared.is_whole:
        return Finding(need, Verdict.MET, f"{shared.target_size} ids, the same tokens")
    return Finding(need, Verdict.LESS, shared.note)


def _special_tokens(draft: Model, target: Model) -> Finding:
    """Only the target's are used; a draft that ends its texts otherwise foresees the end less
    often."""
    need, ours, theirs = "special tokens", _together(draft.ends), _together(target.ends)
    notes = []
    if draft.bos != target.bos:
        notes.append(f"bos_token is {draft.bos} and {target.bos}: the target's is used")
    if ours != theirs:
        notes.append(f"eos_token_id is {ours} and {theirs}: the target's are used")
    if len({tuple(ids) for ids in target.ends.values()}) > 1:
        said = ", ".join(f"{ids} by its {source}" for source, ids in target.ends.items())
        notes.append(f"the target's texts end at {said}: any of them ends a text")
    if not theirs:
        notes.append("no eos_token_id: texts end at max_tokens only")
    if notes:
        return Finding(need, Verdict.LESS, "; ".join(notes))
    return Finding(need, Verdict.MET, f"texts end at id {', '.join(map(str, theirs))}")


def _together(ends: dict[str, list[int]]) -> list[int]:
    return sorted({identity for ids in ends.values() for identity in ids})


def _family(role: str, model: Model) -> Finding:
    family = model.config.get("model_type")
    if model.fault is not None:
        return Finding(f"{role}'s family", Verdict.UNMET, model.fault)
    if model.obstacle is None:
        return Finding(f"{role}'s family", Verdict.MET, f"{family}: known to our own engines")
    return Finding(
        f"{role}'s family",
        Verdict.LESS,
        f"{model.obstacle}. vLLM may know it: see its list of models (scripts/setup --vllm)",
    )


def _contexts(draft: Model, target: Model) -> Finding:
    need = "context length"
    if draft.context is None or target.context is None:
        which = draft if draft.context is None else target
        problem = f"{which.files.config_file} has no max_position_embeddings"
        return Finding(need, Verdict.UNMET, problem)
    if draft.context < target.context:
        detail = f"the draft's {draft.context} positions bound the target's {target.context}"
        return Finding(need, Verdict.LESS, detail)
    return Finding(need, Verdict.MET, f"{target.context} positions")


def _chat_template(target: Model) -> Finding:
    if caution := template_caution(target.files):
        return Finding("chat template", Verdict.LESS, caution)
    if target.has_chat_template:
        return Finding("chat template", Verdict.MET, "the target brings one, which was tried")
    detail = "none: chats through the OpenAI gateway become a plain transcript"
    return Finding("chat template", Verdict.LESS, detail)
