"""The files of a Hugging Face directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model_files.interface import SPECIAL_TOKENS, ModelFilesError, TokenTable, special_tokens
from model_files.json_file import check_small, read_json_object
from model_files.not_models import check_has_model, kind_of
from model_files.prompt_start import leading_token, with_bos_token
from model_files.text_growth import check_growth

_MOST_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True)
class HuggingFaceFiles:
    """Implements `interface.ModelFiles`."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def generation_config_file(self) -> Path:
        return self.path / "generation_config.json"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"

    def config(self) -> dict[str, Any]:
        check_has_model(self.path)
        return read_json_object(self.config_file)

    def generation_config(self) -> dict[str, Any]:
        return _optional(self.generation_config_file)

    def tokenizer_config(self) -> dict[str, Any]:
        """Some models name their special tokens in ``special_tokens_map.json`` alone."""
        config = _optional(self.path / "tokenizer_config.json")
        named = _optional(self.path / "special_tokens_map.json")
        absent = [name for name in SPECIAL_TOKENS if config.get(name) is None and name in named]
        return config | {name: named[name] for name in absent}

    def tokenizer(self) -> Tokenizer:
        tokenizer = _tokenizer(self.tokenizer_file)
        config = self.tokenizer_config()
        wanted = config.get("add_bos_token")
        if wanted is None:
            return tokenizer
        if not isinstance(wanted, bool):
            raise ModelFilesError(
                f"{self.path / 'tokenizer_config.json'}: add_bos_token is {wanted!r}; "
                "allowed: true, false"
            )
        return with_bos_token(tokenizer, special_tokens(config).get("bos_token"), wanted=wanted)

    def leading_token(self) -> str:
        return leading_token(self.tokenizer())

    def token_table(self) -> TokenTable:
        content = read_json_object(self.tokenizer_file)
        try:
            vocabulary = content["model"]["vocab"]
            ids = (
                dict(vocabulary)
                if isinstance(vocabulary, dict)
                else {token: index for index, (token, _) in enumerate(vocabulary)}
            )
            added = {it["content"]: it["id"] for it in content.get("added_tokens", [])}
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFilesError(
                f"{self.tokenizer_file} holds no vocabulary: {error!r}"
            ) from error
        if not all(isinstance(identity, int) for identity in (*ids.values(), *added.values())):
            raise ModelFilesError(f"{self.tokenizer_file} has token ids that are not integers")
        # An added token takes the place of whatever the vocabulary has behind its id.
        taken = set(added.values())
        words = {token: identity for token, identity in ids.items() if identity not in taken}
        return TokenTable(words | added, frozenset(added))

    def chat_template(self) -> str | None:
        """A file of its own wins over the template inside the tokenizer's configuration."""
        file = self.path / "chat_template.jinja"
        try:
            check_small(file, _MOST_TEMPLATE_BYTES)
            return file.read_text(encoding="utf-8")
        except FileNotFoundError:
            pass
        except ModelFilesError:
            raise
        except (OSError, ValueError) as error:
            raise ModelFilesError(f"{file} cannot be read: {error}") from error
        found = self.tokenizer_config().get("chat_template")
        if isinstance(found, list):
            found = _default_of(found)
        if not isinstance(found, str | None):
            raise ModelFilesError(
                f"{self.path / 'tokenizer_config.json'}: chat_template is no text "
                "and no list of named texts"
            )
        return found

    def warnings(self) -> list[str]:
        return []


def _default_of(named: list[Any]) -> Any:
    """Some models bring several templates, each with a name."""
    templates = [entry for entry in named if isinstance(entry, dict)]
    return next((it.get("template") for it in templates if it.get("name") == "default"), None)


def _optional(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.exists() else {}


def _tokenizer(file: Path) -> Tokenizer:
    if not file.exists():
        raise ModelFilesError(
            f"{file} does not exist; a model is a Hugging Face directory with a fast tokenizer "
            "(tokenizer.json), or a GGUF file"
        )
    check_small(file)
    try:
        tokenizer = Tokenizer.from_file(str(file))
        check_growth(tokenizer)
    except Exception as error:  # the library raises nothing more particular
        if kind := kind_of(file):
            raise ModelFilesError(f"{file} is {kind}") from error
        raise ModelFilesError(f"{file} is not a sound tokenizer: {error}") from error
    # Some are saved as they were trained with; a prompt is read whole, or refused by its length.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
