"""A pool for every test that wants one, and one gateway for all tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from gateway_double import (
    TARGET,
    RunningGateway,
    running_gateway,
    two_pieces,
)
from serving_double import make_pool

from card.cache import Pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = make_pool(tmp_path)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway(tokenizer=TARGET, body_bytes=10_000) as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> openai.OpenAI:
    gateway.triton.answer = lambda _: two_pieces()
    return openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=20)
