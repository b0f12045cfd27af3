"""The ASGI application: which path leads to which route, and what stands around them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from card_client import CardError
from card_gateway.errors import answer_error
from card_gateway.figures import CountAnswers
from card_gateway.layers import HEADER, PROBED, LimitRequests, NameRequest, RequireHost, RequireKey
from card_gateway.page import add_page
from card_gateway.routes import Gateway, Routes

_log = logging.getLogger(__name__)


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application. Raises `ChatTemplateError` if the tokenizer cannot be used; a template
    that cannot be used refuses chats alone."""
    routes = Routes(gateway)
    if routes.template.problem:
        _log.warning("warning: chats are refused: %s", routes.template.problem)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        routes.workers.close()
        await routes.client.close()

    app = FastAPI(
        title="CARD on Triton", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None
    )
    operations = routes.operations
    for path, route in (
        ("/v1/completions", routes.complete),
        ("/v1/chat/completions", routes.chat),
        ("/v1/responses", routes.respond),
        ("/tokenize", operations.tokenize),
        ("/detokenize", operations.detokenize),
    ):
        app.add_api_route(path, route, methods=["POST"], response_model=None)
    for path, read in (
        ("/v1/models", routes.models),
        ("/v1/models/{name:path}", routes.model),
        (PROBED, routes.health),
        ("/version", operations.version),
        ("/server_info", operations.server_info),
        ("/get_server_info", operations.server_info),
        ("/model_info", operations.model_info),
        ("/get_model_info", operations.model_info),
        ("/tokenizer_info", operations.tokenizer_info),
        ("/metrics", operations.metrics),
    ):
        app.add_api_route(path, read, methods=["GET", "HEAD"])
    open_paths = {PROBED}
    if gateway.page:
        open_paths.update(add_page(app))
    for kind in (CardError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, answer_error)
    # The last one added is the first that a request meets.
    app.add_middleware(LimitRequests, most=gateway.requests)
    if gateway.api_key is None:
        app.add_middleware(RequireHost, hosts=gateway.allowed_hosts)
    else:
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
