"""One gateway for all tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from gateway_double import (
    TARGET,
    RunningGateway,
    running_gateway,
    two_pieces,
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway(tokenizer=TARGET, body_bytes=10_000) as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> openai.OpenAI:
    gateway.triton.answer = lambda _: two_pieces()
    return openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=20)
