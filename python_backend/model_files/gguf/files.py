"""What a GGUF file says beside its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model_files.gguf.configuration import configuration
from model_files.gguf.header import Header
from model_files.gguf.parts import read_model
from model_files.gguf.tokenizer import build_tokenizer, named_pre, token_table
from model_files.interface import ModelFilesError, TokenTable, special_tokens
from model_files.not_models import GGUF_TYPES

_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Ids that end a text, a turn, a message."""


@dataclass(frozen=True)
class GgufFiles:
    """Implements `interface.ModelFiles`.

    path  the file; of a model in parts the first
    """

    path: Path
    header: Header

    @classmethod
    def read(cls, path: Path) -> GgufFiles:
        """Raises `ModelFilesError`."""
        header = read_model(path)
        kind = header.value("general.type", str)
        if kind not in (None, "model"):
            what = GGUF_TYPES.get(kind, f"a GGUF file of the type {kind!r:.60}, and no model")
            raise ModelFilesError(f"{path} is {what}")
        return cls(path, header)

    @property
    def config_file(self) -> Path:
        return self.path

    @property
    def generation_config_file(self) -> Path:
        return self.path

    @property
    def tokenizer_file(self) -> Path:
        return self.path

    def config(self) -> dict[str, Any]:
        return configuration(self.header)

    def generation_config(self) -> dict[str, Any]:
        found = [self.header.value(f"tokenizer.ggml.{name}", int) for name in _ENDS]
        ends = list(dict.fromkeys(identity for identity in found if identity is not None))
        return {"eos_token_id": ends} if ends else {}

    def tokenizer_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {}
        for name, key in _TOKENS.items():
            if (identity := self.header.value(f"tokenizer.ggml.{key}", int)) is not None:
                config[name] = self._token(key, identity)
        for name in ("add_bos_token", "add_eos_token"):
            if (added := self.header.value(f"tokenizer.ggml.{name}", bool)) is not None:
                config[name] = added
        if "add_bos_token" not in config and self._adds_bos_by_default():
            config["add_bos_token"] = True
        return config

    def _adds_bos_by_default(self) -> bool:
        """As llama.cpp decides for a file that does not say."""
        if self.header.value("tokenizer.ggml.model", str) == "llama":  # SentencePiece
            return True
        pre = named_pre(self.header)
        return pre is not None and pre.adds_bos

    def tokenizer(self) -> Tokenizer:
        return build_tokenizer(self.header, self.tokenizer_config())

    def leading_token(self) -> str:
        """Told without a tokenizer, which takes 0.1 s to build."""
        config = self.tokenizer_config()
        return special_tokens(config).get("bos_token", "") if config.get("add_bos_token") else ""

    def token_table(self) -> TokenTable:
        return token_table(self.header)

    def chat_template(self) -> str | None:
        return self.header.value("tokenizer.chat_template", str)

    def warnings(self) -> list[str]:
        byte_level = self.header.value("tokenizer.ggml.model", str) == "gpt2"
        if not byte_level or named_pre(self.header) is not None:
            return []
        return [
            f"{self.path}: tokenizer.ggml.pre is missing in its metadata; texts are cut as for "
            "GPT-2, which may not be how the model was trained: convert the model again with a "
            "newer llama.cpp"
        ]

    def _token(self, key: str, identity: int) -> str:
        tokens = self.header.required("tokenizer.ggml.tokens", list)
        if not 0 <= identity < len(tokens):
            raise ModelFilesError(
                f"{self.path}: tokenizer.ggml.{key} is {identity}; allowed: ids of tokens, "
                f"0 to {len(tokens) - 1}"
            )
        return str(tokens[identity])
