"""The routes for operators and routers: metrics, the version, and what is served."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from card_client import CardClient, CardError
from card_gateway.figures import Figures
from card_gateway.replica import Replica


class Operations:
    """The routes."""

    def __init__(self, figures: Figures, client: CardClient, replica: Replica, model: str) -> None:
        self._figures = figures
        self._client = client
        self._replica = replica
        self._model = model
        self._context_tokens: int | None = None

    async def context_tokens(self) -> int | None:
        """How many tokens the server's model takes, prompt and text together, asked once; None if
        the server is away or does not say."""
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
        """What SGLang's router asks of a worker before it sends requests there."""
        return {
            "served_model_name": self._model,
            "version": metadata.version("card-gateway"),
            "max_total_tokens": await self.context_tokens(),
        }

    async def model_info(self, request: Request) -> dict[str, Any]:
        """The same of the model. The path stays unsaid: a router would load a tokenizer there."""
        return {"model_type": "llm", "is_generation": True}
