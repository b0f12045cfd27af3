"""What drafts on a device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from card_client.errors import CardError, invalid


class DraftModel(Protocol):
    """A model with the tokens of the server's target. One thread at a time calls it."""

    @property
    def end_ids(self) -> Collection[int]:
        """Ids behind which it drafts nothing."""

    def tokens(self, text: str) -> list[int]:
        """A prompt as the server reads it."""

    def next_token(self, tokens: Sequence[int]) -> int:
        """What follows prompt and text. What it raises ends the drafting, and no text."""


class TransformersModel:
    """A Hugging Face directory with safetensors and `tokenizer.json`, run by `transformers`.

    It drafts the likeliest token, also for texts that are sampled. Its KV cache follows the text:
    tokens that are new, and those behind the first that has changed, are computed.
    """

    def __init__(self, model: Any, tokenizer: Any, torch: Any, cache: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._torch = torch
        self._cache = cache
        self._known: list[int] = []
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        ends = model.generation_config.eos_token_id
        self.end_ids = frozenset([ends] if isinstance(ends, int) else ends or ())

    @classmethod
    def load(cls, directory: Path) -> TransformersModel:
        """Raises `CardError` if the packages are missing, or the directory holds no such model."""
        try:
            import torch
            from tokenizers import Tokenizer
            from transformers import AutoModelForCausalLM, DynamicCache
        except ImportError as error:
            raise CardError(
                "FAILED_PRECONDITION",
                f"{error.name} is not installed; pip install 'card-client[edge]'",
            ) from error
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise invalid(f"{file} is missing; a draft is a Hugging Face directory")
        on_gpu = torch.cuda.is_available()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                directory,
                dtype="auto" if on_gpu else torch.float32,
                use_safetensors=True,
                local_files_only=True,
            )
        except (OSError, ValueError) as error:
            raise invalid(f"{directory} holds no model that can be loaded: {error}") from error
        model = model.eval().to("cuda" if on_gpu else "cpu")
        loaded = cls(model, Tokenizer.from_file(str(file)), torch, DynamicCache())
        loaded.next_token([0])  # the first pass takes seconds, and no text is to wait for it
        return loaded

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def next_token(self, tokens: Sequence[int]) -> int:
        kept = _common(self._known, tokens[:-1])
        if (largest := max(tokens[kept:])) >= self._vocabulary:
            raise invalid(
                f"the server writes token {largest}, and the draft knows {self._vocabulary} tokens "
                "alone: take a draft with the tokens of the server's model"
            )
        if kept < len(self._known):
            self._cache.crop(kept - len(self._known))  # less than 0: so many go
        missing = self._torch.tensor([tokens[kept:]], device=self._model.device)
        with self._torch.inference_mode():
            found = self._model(missing, past_key_values=self._cache, logits_to_keep=1)
        self._known = list(tokens)
        return int(found.logits[0, -1].argmax())


def _common(known: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(known, tokens, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other),
        min(len(known), len(tokens)),
    )
