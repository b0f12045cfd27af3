"""Ids that end a text, from everything that names some.

The files of one model can disagree: one configuration names the end of a text, the chat template
writes the end of a turn, and a generation configuration may be older than the tokenizer. Any of
these ids ends a text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model_files.interface import ModelFiles, ModelFilesError, special_tokens
from model_files.template_trial import try_template


def end_ids_by_source(files: ModelFiles, size: int, tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The ids that each source names, without sources that name none.

    size  ids that the model has: another in a configuration is an error, another of the tokenizer
          is never written
    Raises `ModelFilesError`.
    """
    named = {
        "generation_config": _configured(
            files.generation_config_file, files.generation_config(), size
        ),
        "config": _configured(files.config_file, files.config(), size),
        "tokenizer": _of_token(
            tokenizer, special_tokens(files.tokenizer_config()).get("eos_token")
        ),
        "chat template": _of_token(tokenizer, _end_of_turn(files, tokenizer)),
    }
    written = {source: [it for it in ids if it < size] for source, ids in named.items()}
    return {source: ids for source, ids in written.items() if ids}


def end_ids(files: ModelFiles, size: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    """All ids that end a text. Raises `ModelFilesError`."""
    named = end_ids_by_source(files, size, tokenizer).values()
    return tuple(dict.fromkeys(identity for ids in named for identity in ids))


def _configured(file: Path, config: dict[str, Any], size: int) -> list[int]:
    wanted = config.get("eos_token_id")
    ids = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    if all(type(identity) is int and 0 <= identity < size for identity in ids):
        return ids
    raise ModelFilesError(
        f"{file} has no usable eos_token_id ({wanted!r:.80}); "
        f"it must be null, a token id (0 to {size - 1}), or a list of them"
    )


def _of_token(tokenizer: Tokenizer, token: str | None) -> list[int]:
    identity = None if token is None else tokenizer.token_to_id(token)
    return [] if identity is None else [identity]


def _end_of_turn(files: ModelFiles, tokenizer: Tokenizer) -> str | None:
    """The token that the chat template writes behind an answer; None: no template, or no token."""
    trial = try_template(files)
    behind = "" if trial is None else trial.answer_end.lstrip()
    added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
    return max((token for token in added if behind.startswith(token)), key=len, default=None)
