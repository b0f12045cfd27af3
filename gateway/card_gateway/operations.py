"""The routes for operators, routers and tools: metrics, version, model, and tokens of a text."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from card_client import CardClient, CardError
from card_client.chat_template import ChatTemplate
from card_gateway.errors import ApiError, refused
from card_gateway.figures import Figures
from card_gateway.limits import MOST_FIELDS, MOST_MESSAGES, MOST_TOKENIZED_BYTES, AtMost, Tools
from card_gateway.messages import Message
from card_gateway.reading import Workers, body_of, parsed
from card_gateway.replica import Replica
from card_gateway.template import prompt_of
from card_gateway.tokens import TokenTexts
from card_gateway.tools.definitions import Tool


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: str | None = None


class TokenizeBody(_Body):
    """`POST /tokenize`: a text, or the messages of a chat."""

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1), AtMost(MOST_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    tools: Tools[Tool] | None = None
    chat_template_kwargs: Annotated[dict[str, JsonValue], AtMost(MOST_FIELDS)] | None = None


class DetokenizeBody(_Body):
    """`POST /detokenize`."""

    tokens: Annotated[
        list[Annotated[int, Field(ge=0, lt=1 << 31)]], AtMost(MOST_TOKENIZED_BYTES // 2)
    ]


class Operations:
    """The routes."""

    def __init__(
        self,
        figures: Figures,
        client: CardClient,
        template: ChatTemplate,
        tokens: TokenTexts | None,
        workers: Workers,
        body_bytes: int,
        replica: Replica,
        model: str,
    ) -> None:
        """`tokens` is None where the gateway was given no tokenizer."""
        self._workers = workers
        self._body_bytes = body_bytes
        self._figures = figures
        self._replica = replica
        self._model = model
        self._client = client
        self._context_tokens: int | None = None
        self._template = template
        self._tokens = tokens

    async def context_tokens(self) -> int | None:
        """Most tokens of prompt and text together, asked of the server once. None: the server is
        away or does not say."""
        if self._context_tokens is None:
            try:
                told = (await self._client.parameters()).get("context_tokens", "")
            except CardError:
                return None
            self._context_tokens = int(told) if told.isdecimal() else None
        return self._context_tokens

    async def metrics(self, request: Request) -> Response:
        page = self._figures.exposition(await self._replica.metrics())
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> dict[str, str]:
        return {"version": metadata.version("card-gateway")}

    async def server_info(self, request: Request) -> dict[str, Any]:
        """SGLang's router reads this before it sends requests here."""
        return {
            "served_model_name": self._model,
            "version": metadata.version("card-gateway"),
            "max_total_tokens": await self.context_tokens(),
        }

    async def model_info(self, request: Request) -> dict[str, Any]:
        """SGLang's router reads this too. Without a path the router loads no tokenizer."""
        return {"model_type": "llm", "is_generation": True}

    async def tokenize(self, request: Request) -> Response:
        """Token ids as the server reads the text; `add_special_tokens` changes that."""
        return await self._answered(request, self._tokenized, await self.context_tokens())

    async def detokenize(self, request: Request) -> Response:
        return await self._answered(request, self._detokenized)

    async def _answered(
        self, request: Request, answer: Callable[..., dict[str, Any]], *arguments: Any
    ) -> Response:
        data = await body_of(request, self._body_bytes)
        return await self._workers.run(len(data), lambda: JSONResponse(answer(data, *arguments)))

    def _tokenized(self, data: bytes, context_tokens: int | None) -> dict[str, Any]:
        tokens, body = self._tokenizer(), parsed(data, TokenizeBody)
        if (body.prompt is None) == (body.messages is None):
            raise refused("prompt", "send either prompt or messages")
        text = self._rendered(body) if body.prompt is None else body.prompt
        if (size := len(text.encode())) > MOST_TOKENIZED_BYTES:
            field = "messages" if body.prompt is None else "prompt"
            raise refused(
                field,
                f"{field} has {size} bytes of text; at most {MOST_TOKENIZED_BYTES} are tokenized",
            )
        # A chat is read as a prompt: what the template lacks, the server adds.
        special = True if body.add_special_tokens is None else body.add_special_tokens
        ids = tokens.ids(text, add_special_tokens=special)
        return {
            "count": len(ids),
            "max_model_len": context_tokens,
            "tokens": ids,
            "token_strs": [tokens.of(token) for token in ids] if body.return_token_strs else None,
        }

    def _detokenized(self, data: bytes) -> dict[str, Any]:
        tokens, body = self._tokenizer(), parsed(data, DetokenizeBody)
        for place, token in enumerate(body.tokens):
            if not tokens.has(token):
                field = f"tokens.{place}"
                raise refused(field, f"{field} is {token}; the model has no such token")
        return {"prompt": tokens.text(body.tokens)}

    async def tokenizer_info(self, request: Request) -> dict[str, str]:
        """vLLM's route, for evaluation harnesses without a tokenizer of their own."""
        self._tokenizer()
        template = self._template
        told = {
            **template.special_tokens,
            "chat_template": template.source if template.is_own else "",
        }
        return {name: text for name, text in told.items() if text}

    def _rendered(self, body: TokenizeBody) -> str:
        messages, variables = body.messages or [], body.chat_template_kwargs
        return prompt_of(self._template, messages, body.tools, variables)

    def _tokenizer(self) -> TokenTexts:
        if self._tokens is None:
            raise ApiError(
                501, "this gateway was not given the model's tokenizer; start it with --tokenizer"
            )
        return self._tokens
