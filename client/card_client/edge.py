"""A device that drafts for its own text and lets the server verify (SLED, arXiv 2506.09397).

The server writes the text on one gRPC stream, the device sends its drafts on another: Triton ends a
stream when all its requests are answered, in their order. On a stream of their own, drafts hold up
no text, whatever becomes of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from card_client.client import DEFAULT_TIMEOUT_S, CardClient
from card_client.errors import CardError, invalid
from card_client.wire import Delta, Draft, GenerateRequest


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


LONGEST_CHAIN = 64
"""Tokens of one draft that the server takes."""
DEFAULT_AHEAD = 16


class Device:
    """Drafts behind one text, a token at a time, and never more than `ahead` tokens.

    The text is what the server committed. Where it is not what was drafted, the device drafts anew
    from there.
    """

    def __init__(
        self,
        model: DraftModel,
        prompt: Sequence[int],
        *,
        max_tokens: int | None = None,
        ahead: int = DEFAULT_AHEAD,
        whole: bool = False,
    ) -> None:
        """`max_tokens` bounds the text, if that is known. `whole`: a chain is sent only when it is
        as long as it may be, for a server that waits for it."""
        self._model = model
        self._text = list(prompt)
        self._prompt_length = len(prompt)
        self._max_tokens = max_tokens
        self._most_ahead = min(ahead, LONGEST_CHAIN)
        self._whole = whole
        self._ahead: list[int] = []
        self._changed = asyncio.Event()
        self._grown = asyncio.Event()
        self._closed = False

    @property
    def position(self) -> int:
        """Tokens of the text behind the prompt."""
        return len(self._text) - self._prompt_length

    def commit(self, tokens: Sequence[int]) -> None:
        """The server committed these, if any."""
        if not tokens:
            return
        self._text += tokens
        right = self._ahead[: len(tokens)] == list(tokens)
        self._ahead = self._ahead[len(tokens) :] if right else []
        self._changed.set()
        if not self._may_draft():  # what is left is all that will come
            self._grown.set()

    def close(self) -> None:
        """The text has ended: nothing more is drafted or sent."""
        self._closed = True
        self._changed.set()
        self._grown.set()

    async def draft(self) -> None:
        """Draft until the text ends. Raises what the model raises."""
        while not self._closed:
            if self._may_draft():
                await self._draft_one()
            else:
                self._changed.clear()
                await self._changed.wait()

    async def drafts(self) -> AsyncGenerator[Draft, None]:
        """Yields the whole chain when it has grown, until the text ends. Nothing comes before the
        first commit, for the server knows of no session until then.

        A slow consumer gets fewer, longer drafts, because nothing is queued.
        """
        while not self._closed:
            await self._grown.wait()
            self._grown.clear()
            if self._may_send():
                yield Draft(self.position, tuple(self._ahead))

    def _may_send(self) -> bool:
        if self._closed or not self._ahead or not self.position:
            return False
        return not (self._whole and self._may_draft())

    def _may_draft(self) -> bool:
        if self._ahead and self._ahead[-1] in self._model.end_ids:
            return False
        most = self._most_ahead
        if self._max_tokens is not None:  # the last token is always the server's own
            most = min(most, self._max_tokens - self.position - 1)
        return len(self._ahead) < most

    async def _draft_one(self) -> None:
        """One token more, unless the text has gone another way meanwhile."""
        behind = [*self._text, *self._ahead]
        token = await asyncio.to_thread(self._model.next_token, behind)
        if behind == [*self._text, *self._ahead]:
            self._ahead.append(token)
            self._grown.set()


_END_S = 1.0
"""For the server to end the stream of the drafts."""


async def stream(
    client: CardClient,
    request: GenerateRequest,
    model: DraftModel,
    *,
    ahead: int = DEFAULT_AHEAD,
    whole: bool = False,
    timeout_s: float | None = DEFAULT_TIMEOUT_S,
    on_refusal: Callable[[CardError], None] = lambda _: None,
) -> AsyncGenerator[Delta, None]:
    """As `CardClient.stream`, with `model` drafting at most `ahead` tokens ahead on this machine.

    `whole` sends only chains of this many tokens: the rounds of SLED, for a `decoding` in which the
    server waits for them. The text is the same as without a draft. Errors of the model are raised
    behind the whole text. If the server refuses most drafts, `on_refusal` gets the reason.
    """
    if request.input_ids:
        prompt = list(request.input_ids)
    elif request.text_input is not None:
        prompt = model.tokens(request.text_input)
    else:
        raise invalid("text_input is missing")
    device = Device(model, prompt, max_tokens=request.max_tokens, ahead=ahead, whole=whole)
    key = secrets.token_hex(16)
    deltas = client.stream(replace(request, draft_key=key), timeout_s=timeout_s)
    drafting = asyncio.create_task(device.draft())
    sending = asyncio.create_task(_send(client, key, device, timeout_s, on_refusal))
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                device.commit(delta.output_ids)
                yield delta
        device.close()
        await drafting
    finally:
        device.close()
        drafting.cancel()
        # A stream that is cancelled while more may come costs Triton memory; this one is ending.
        await asyncio.wait({sending}, timeout=_END_S)
        sending.cancel()


async def _send(
    client: CardClient,
    key: str,
    device: Device,
    timeout_s: float | None,
    on_refusal: Callable[[CardError], None],
) -> None:
    """Send what the device drafts. Where that is not possible the text comes without it."""
    try:
        refusal = await client.send_drafts(key, device.drafts(), timeout_s=timeout_s)
    except CardError as error:
        refusal = error
    if refusal is not None:
        on_refusal(refusal)
