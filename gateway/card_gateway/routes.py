"""The routes that generate text, and those that say of which model and whether one can."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from card_client import CardClient, CardError, GenerateRequest, Tls
from card_client.chat_template import ChatTemplate
from card_gateway.answer import Answer, ChatAnswer, CompletionAnswer
from card_gateway.body import ChatBody, CompletionBody
from card_gateway.errors import ApiError, refused
from card_gateway.events import EventStream, answer_events, json_in_steps
from card_gateway.figures import Figures, Usage
from card_gateway.generation import (
    Piece,
    Pieces,
    begin,
    best,
    gather,
    generate,
    prompt_alone,
    side_by_side,
    unless_client_leaves,
)
from card_gateway.layers import identifier_of, traced
from card_gateway.operations import Operations
from card_gateway.reading import SMALL_BYTES, Workers, body_of, parsed
from card_gateway.replica import Replica
from card_gateway.responses.body import ResponseBody, fields_renamed
from card_gateway.responses.items import ItemMemory
from card_gateway.responses.output import ResponseAnswer, response_events
from card_gateway.sampling import SamplingBody
from card_gateway.template import prompt_of, read_model
from card_gateway.tokens import Scores, TokenTexts, TraceTexts
from card_gateway.tools.answer import CallingAnswer, with_calls
from card_gateway.tools.written import tools_named

Calling = TypeVar("Calling", ChatBody, ResponseBody)
"""A request that may have tools."""
Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Gateway:
    """The gateway's settings; `card-gateway --help` explains them.

    Requests take turns where the host's name of `triton` has several addresses. Without a tokenizer
    chats are written down plainly, and log-probabilities are refused. Without a key `allowed_hosts`
    and this machine alone are answered. `server_metrics` is the address of the metrics of the one
    server behind this gateway.
    """

    triton: str = "localhost:8001"
    triton_model: str = "ensemble"
    model: str = "ensemble"
    tokenizer: Path | None = None
    api_key: str | None = None
    body_bytes: int = 1 << 20
    timeout_s: float = 300.0
    tls: Tls | None = None
    at_once: int = 4
    allowed_origins: tuple[str, ...] = ()
    page: bool = False
    allowed_hosts: tuple[str, ...] = ()
    requests: int = 1024
    server_metrics: str | None = None


class Routes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._created = int(time.time())
        self._items = ItemMemory()
        self.template, self._tokens = ChatTemplate.plain(), None
        if gateway.tokenizer is not None:
            self.template, tokenizer = read_model(gateway.tokenizer)
            self._tokens = TokenTexts(tokenizer)
        self.client = CardClient(
            gateway.triton, model=gateway.triton_model, tls=gateway.tls, balanced=True
        )
        self.figures = Figures(gateway.model)
        self.workers = Workers()
        self.operations = Operations(
            self.figures,
            self.client,
            self.template,
            self._tokens,
            self.workers,
            gateway.body_bytes,
            Replica(gateway.server_metrics, gateway.model),
            gateway.model,
        )

    async def complete(self, request: Request) -> Response:
        return await self._answer(request, *await self._prepared(request, self._completion))

    async def chat(self, request: Request) -> Response:
        body, generations, answer = await self._prepared(request, self._chat)
        with tools_named(body.tool_use, body.guide_of_tools):
            return await self._answer(request, body, generations, answer)

    async def respond(self, request: Request) -> Response:
        body, chat, generation = await self._prepared(request, partial(self._response, request))
        with fields_renamed(request):
            return await self._respond(request, body, chat, generation)

    async def _prepared(self, request: Request, prepare: Callable[[bytes], Prepared]) -> Prepared:
        """Run `prepare` on the body, beside the event loop. The request's deadline starts here."""
        request.state.deadline_s = time.monotonic() + self._gateway.timeout_s
        data = await body_of(request, self._gateway.body_bytes)
        work = self.workers.run(len(data), prepare, data)
        return await unless_client_leaves(request, work)

    def _completion(self, data: bytes) -> tuple[SamplingBody, list[GenerateRequest], Answer]:
        body = parsed(data, CompletionBody)
        self._check_model(body.model)
        echoes: list[str] = []
        if body.echo:
            texts = [self._text_of(prompt) for prompt in body.prompts]
            echoes = [text for text in texts for _ in range(body.answers)]
        answer = CompletionAnswer(body.model, self._scores(body), echoes)
        return body, body.generate_requests(), answer

    def _chat(self, data: bytes) -> tuple[ChatBody, list[GenerateRequest], Answer]:
        body = parsed(data, ChatBody)
        self._check_model(body.model)
        body = self._with_parallel_calls(body)
        kind = CallingAnswer if body.tool_use.tools else ChatAnswer
        answer = kind(body.model, self._scores(body))
        return body, [self._generation(body)], answer

    def _response(
        self, request: Request, data: bytes
    ) -> tuple[ResponseBody, ChatBody, GenerateRequest]:
        body = parsed(data, ResponseBody)
        self._check_model(body.model)
        body = self._with_parallel_calls(body)
        with fields_renamed(request):
            chat = body.chat(self._items)
            return body, chat, self._generation(chat)

    async def _respond(
        self, request: Request, body: ResponseBody, chat: ChatBody, generation: GenerateRequest
    ) -> Response:
        usage = Usage()
        identity = f"resp_{identifier_of(request)}"
        answer = ResponseAnswer(
            identity, body, usage, self._scores(body), reads_calls=bool(chat.tool_use.tools)
        )
        pieces = self.figures.counted(self._texts([generation], request, chat, identity), usage)
        memory = None if body.store is False else self._items

        def whole(texts: list[Piece]) -> dict[str, Any]:
            answer.finish(texts[0])
            if memory is not None:
                memory.keep(answer.output)
            return answer.response()

        events = partial(
            response_events, answer, pieces=pieces, memory=memory, workers=self.workers
        )
        with tools_named(chat.tool_use, chat.guide_of_tools):
            return await self._sent(request, chat, pieces, whole, events)

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [await self.model(self._gateway.model)]}

    async def model(self, name: str) -> dict[str, Any]:
        self._check_model(name)
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "card",
            "max_model_len": await self.operations.context_tokens(),
        }

    async def health(self) -> Response:
        """200 if a request now would be answered, else 503."""
        try:
            ready = await self.client.is_ready()
        except CardError as error:
            return JSONResponse({"ready": False, "reason": error.message}, 503)
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _answer(
        self,
        request: Request,
        body: SamplingBody,
        generations: list[GenerateRequest],
        answer: Answer,
    ) -> Response:
        """Generate every text, those of a prompt with seeds that follow each other."""
        wanted = [
            _with_seed(generation, place)
            for generation in generations
            for place in range(body.candidates)
        ]
        answer.identity = f"{answer.prefix}-{identifier_of(request)}"
        if body.return_trace:
            answer.follow(TraceTexts(self._tokens))
        # For log-probabilities of the prompt the server reads it each time.
        sharing = 1 if wanted[0].return_prompt_log_probs else body.candidates
        texts = self._texts(wanted, request, body, answer.identity, sharing)
        usage = Usage(per_prompt=body.candidates)
        pieces = self.figures.counted(prompt_alone(texts) if body.is_prompt_alone else texts, usage)

        def whole(texts: list[Piece]) -> dict[str, Any]:
            if body.candidates > body.answers:
                texts = best(texts, body.candidates, body.answers)
            return answer.whole(texts, usage)

        events = partial(
            answer_events,
            answer,
            pieces=pieces,
            texts=len(wanted),
            usage=usage,
            body=body,
            workers=self.workers,
        )
        return await self._sent(request, body, pieces, whole, events)

    async def _sent(
        self,
        request: Request,
        body: SamplingBody,
        pieces: Pieces,
        whole: Callable[[list[Piece]], dict[str, Any]],
        events: Callable[[Piece], AsyncIterator[bytes]],
    ) -> Response:
        """The answer made of `pieces`: all of it, or event by event from the first piece on."""
        if body.guide is not None:  # for an error that names it
            request.state.guided_by = body.guide.field
        if body.stream:
            # Refusals come before the first piece, while they can still have a status.
            first = await unless_client_leaves(request, begin(pieces))
            return EventStream(events(first), pieces, request.state.deadline_s)
        texts = await unless_client_leaves(request, gather(pieces))
        # Log-probabilities make an answer of megabytes.
        size = SMALL_BYTES + 1 if body.wants_log_probs else 0
        written = await self.workers.run(size, lambda: json_in_steps(whole(texts)).encode())
        return Response(written, media_type="application/json")

    def _texts(
        self,
        wanted: list[GenerateRequest],
        request: Request,
        body: SamplingBody,
        identity: str,
        per_prompt: int = 1,
    ) -> Pieces:
        headers = traced(request.headers)
        texts = [
            generate(
                self.client,
                self.workers,
                generation,
                deadline_s=request.state.deadline_s,
                request_id=identity,
                index=index,
                headers=headers,
            )
            for index, generation in enumerate(wanted)
        ]
        if body.tool_use.tools:
            one = body.ends_with_a_call
            texts = [with_calls(text, body.tool_use, one=one) for text in texts]
        if len(texts) == 1:
            return texts[0]
        return side_by_side(texts, self._gateway.at_once, per_prompt)

    def _with_parallel_calls(self, body: Calling) -> Calling:
        """The request, which says whether an answer may hold several calls. A model was taught to
        write several at once only if its template knows tools; any other repeats its call."""
        if body.parallel_tool_calls is not None:
            return body
        return body.model_copy(update={"parallel_tool_calls": self.template.knows_tools})

    def _generation(self, chat: ChatBody) -> GenerateRequest:
        tools = chat.tool_use.tools
        prompt = prompt_of(self.template, chat.messages, tools, chat.template_variables)
        return chat.generate_request(prompt, self.template.stop_words)

    def _text_of(self, prompt: str | list[int]) -> str:
        """The prompt as it is echoed. Raises `ApiError`."""
        if isinstance(prompt, str):
            return prompt
        if self._tokens is None:
            raise refused(
                "echo",
                "echo of a prompt of token ids needs the model's tokenizer, which this gateway was "
                "not given",
            )
        return self._tokens.text(prompt)

    def _check_model(self, name: str) -> None:
        if name != self._gateway.model:
            message = (
                f"the model {name[:200]!r} does not exist; this server has {self._gateway.model!r}"
            )
            raise ApiError(404, message, param="model", code="model_not_found")

    def _scores(self, body: SamplingBody) -> Scores | None:
        if not body.wants_log_probs:
            return None
        if self._tokens is None:
            raise refused(
                "logprobs", "logprobs needs the model's tokenizer, which this gateway was not given"
            )
        return Scores(self._tokens, body.alternatives)


def _with_seed(generation: GenerateRequest, place: int) -> GenerateRequest:
    """Text i of a prompt has the given seed + i."""
    if generation.seed is None or not place:
        return generation
    return replace(generation, seed=(generation.seed + place) % (1 << 64))
