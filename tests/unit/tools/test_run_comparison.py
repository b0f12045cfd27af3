"""What `scripts/run` compares: the server as it is set with plain decoding, once it is settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from card_client import GenerateRequest
from card_client.wire import Response
from demonstration import comparison


def test_figures_are_of_the_servers_own_decoding_after_it_has_settled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str | None] = []

    class Client:
        def __init__(self, url: str) -> None: ...

        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: Any) -> None: ...

        async def stream(self, request: GenerateRequest) -> AsyncIterator[Response]:
            events.append(request.decoding)
            yield Response(text="a text", num_output_tokens=2, finish_reason="stop")

    async def settled() -> None:
        events.append("settled")

    monkeypatch.setattr(comparison, "CardClient", Client)
    asyncio.run(comparison.compare("host:1", GenerateRequest("p", 2), "p", "CARD", settled))
    first, *measured = events
    assert first is None
    assert measured == ["settled", *[None, "autoregressive"] * 5]
    assert "identical" in capsys.readouterr().out
