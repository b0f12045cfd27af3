"""The routes."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from card_client import CardClient, CardError, GenerateRequest, Tls
from card_client.chat_template import ChatTemplate
from card_gateway.admission import CheckBody, RequireKey
from card_gateway.answer import Answer, ChatAnswer, CompletionAnswer
from card_gateway.body import ChatBody, CompletionBody, SamplingBody
from card_gateway.errors import ApiError, answer_error, refused
from card_gateway.events import EventStream, answer_events
from card_gateway.figures import CountAnswers, Figures
from card_gateway.generation import (
    Piece,
    begin,
    gather,
    generate,
    prompt_alone,
    unless_client_leaves,
)
from card_gateway.identity import HEADER, NameRequest, identifier_of, traced
from card_gateway.operations import Operations
from card_gateway.page import add_page
from card_gateway.responses.body import ResponseBody
from card_gateway.responses.memory import ItemMemory
from card_gateway.responses.output import ResponseAnswer
from card_gateway.responses.refusal import fields_renamed
from card_gateway.responses.stream import response_events
from card_gateway.scores import Scores
from card_gateway.several import Pieces, best, side_by_side
from card_gateway.template import prompt_of, read_model
from card_gateway.tokens import TokenTexts, TraceTexts
from card_gateway.tools.answer import CallingAnswer, with_calls
from card_gateway.tools.refusal import tools_named
from card_gateway.usage import Usage

CLIENT_CLOSED_REQUEST = 499

Calling = TypeVar("Calling", ChatBody, ResponseBody)
"""A request that may have tools."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gateway:
    """What the gateway is set to, as `card-gateway --help` explains it.

    Requests take turns where the host's name of `triton` has several addresses. Without a tokenizer
    chats are written down plainly, and log-probabilities are refused.
    """

    triton: str = "localhost:8001"
    triton_model: str = "ensemble"
    model: str = "ensemble"
    tokenizer: Path | None = None
    api_key: str | None = None
    body_bytes: int = 4 << 20
    timeout_s: float = 300.0
    tls: Tls | None = None
    at_once: int = 4
    allowed_origins: tuple[str, ...] = ()
    page: bool = False


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application. Raises `ChatTemplateError` if the tokenizer cannot be used; a template
    that cannot be used refuses chats alone."""
    routes = _Routes(gateway)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await routes.client.close()

    app = FastAPI(
        title="CARD on Triton", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None
    )
    app.add_api_route("/v1/completions", routes.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/responses", routes.respond, methods=["POST"], response_model=None)
    operations = routes.operations
    app.add_api_route("/tokenize", operations.tokenize, methods=["POST"])
    app.add_api_route("/detokenize", operations.detokenize, methods=["POST"])
    for path, route in (
        ("/v1/models", routes.models),
        ("/v1/models/{name:path}", routes.model),
        ("/health", routes.health),
        ("/version", operations.version),
        ("/tokenizer_info", operations.tokenizer_info),
        ("/metrics", operations.metrics),
    ):
        app.add_api_route(path, route, methods=["GET", "HEAD"])
    open_paths = {"/health"}  # what a probe asks
    if gateway.page:
        open_paths.update(add_page(app))
    for kind in (CardError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_middleware(CheckBody, most=gateway.body_bytes)
    if gateway.api_key is not None:
        app.add_middleware(RequireKey, key=gateway.api_key, open_paths=open_paths)
    app.add_middleware(CountAnswers, figures=routes.figures)
    if gateway.allowed_origins:
        app.add_middleware(  # outside the key: a browser asks before it sends one
            CORSMiddleware,
            allow_origins=gateway.allowed_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=[HEADER],
        )
    app.add_middleware(NameRequest)
    return app


class _Routes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._created = int(time.time())
        self._items = ItemMemory()
        self._template, self._tokens = ChatTemplate.plain(), None
        if gateway.tokenizer is not None:
            self._template, tokenizer = read_model(gateway.tokenizer)
            self._tokens = TokenTexts(tokenizer)
            if self._template.problem:
                _log.warning("warning: chats are refused: %s", self._template.problem)
        self.client = CardClient(
            gateway.triton, model=gateway.triton_model, tls=gateway.tls, balanced=True
        )
        self.figures = Figures(gateway.model)
        self.operations = Operations(self.figures, self.client, self._template, self._tokens)

    async def complete(self, request: Request, body: CompletionBody) -> Response:
        self._check_model(body.model)
        prompts = body.prompts
        echoes: list[str] = []
        if body.echo:
            texts = [self._text_of(prompt) for prompt in prompts]
            echoes = [text for text in texts for _ in range(body.answers)]
        answer = CompletionAnswer(body.model, self._scores(body), echoes)
        generations = [body.generate_request(prompt) for prompt in prompts]
        return await self._answer(request, body, generations, answer)

    async def chat(self, request: Request, body: ChatBody) -> Response:
        self._check_model(body.model)
        body = self._with_parallel_calls(body)
        kind = CallingAnswer if body.tool_use.tools else ChatAnswer
        answer = kind(body.model, self._scores(body))
        prompt = self._prompt(body)
        generation = body.generate_request(prompt, self._template.stop_words)
        with tools_named(body.tool_use, body.guide_of_tools):
            return await self._answer(request, body, [generation], answer)

    async def respond(self, request: Request, body: ResponseBody) -> Response:
        self._check_model(body.model)
        body = self._with_parallel_calls(body)
        with fields_renamed(request):
            return await self._respond(request, body)

    async def _respond(self, request: Request, body: ResponseBody) -> Response:
        chat = body.chat(self._items)
        prompt = self._prompt(chat)
        generation = chat.generate_request(prompt, self._template.stop_words)
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

        events = partial(response_events, answer, pieces=pieces, memory=memory)
        with tools_named(chat.tool_use, chat.guide_of_tools):
            return await self._told(request, chat, pieces, whole, events)

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
            ready = (await self.client.health()).ready
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
        # Who asks for the prompt's log-probabilities has it read each time.
        sharing = 1 if wanted[0].return_prompt_log_probs else body.candidates
        texts = self._texts(wanted, request, body, answer.identity, sharing)
        usage = Usage(per_prompt=body.candidates)
        pieces = self.figures.counted(prompt_alone(texts) if body.is_prompt_alone else texts, usage)

        def whole(texts: list[Piece]) -> dict[str, Any]:
            if body.candidates > body.answers:
                texts = best(texts, body.candidates, body.answers)
            return answer.whole(texts, usage)

        events = partial(
            answer_events, answer, pieces=pieces, texts=len(wanted), usage=usage, body=body
        )
        return await self._told(request, body, pieces, whole, events)

    async def _told(
        self,
        request: Request,
        body: SamplingBody,
        pieces: Pieces,
        whole: Callable[[list[Piece]], dict[str, Any]],
        events: Callable[[Piece], AsyncIterator[bytes]],
    ) -> Response:
        """The answer made of `pieces`: all of it, or event by event from the first piece on."""
        if body.guide is not None:  # for who tells of an error
            request.state.guided_by = body.guide.field
        try:
            if not body.stream:
                return JSONResponse(whole(await unless_client_leaves(request, gather(pieces))))
            # Refusals come before the first piece, while they can still have a status.
            first = await unless_client_leaves(request, begin(pieces))
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return EventStream(events(first), pieces)

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
                generation,
                timeout_s=self._gateway.timeout_s,
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
        return body.model_copy(update={"parallel_tool_calls": self._template.knows_tools})

    def _prompt(self, chat: ChatBody) -> str:
        tools = chat.tool_use.tools
        return prompt_of(self._template, chat.messages, tools, chat.template_variables)

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
            message = f"the model {name!r} does not exist; this server has {self._gateway.model!r}"
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
    """Of several texts of a prompt the first has the seed that was given, each other the next."""
    if generation.seed is None or not place:
        return generation
    return replace(generation, seed=(generation.seed + place) % (1 << 64))
