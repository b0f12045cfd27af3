"""Settings files and pools for tests that want them, a gateway for all that do not change it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from client_double import TritonDouble, served
from gateway_double import RunningGateway, running_gateway, two_pieces
from real_pair import TARGET
from serving_double import make_pool
from settings_files import Write
from tensorrt_double import Cache
from told_clock import ToldClock

from card.cache import Pool
from card.settings import ENVIRONMENT_PREFIX


@pytest.fixture
def no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from the environment."""
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        file = tmp_path / "settings.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write_file


@pytest.fixture
def clock() -> ToldClock:
    return ToldClock()


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[TritonDouble]:
    with served() as double:
        monkeypatch.setenv("CARD_URL", double.address)
        yield double


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = make_pool(tmp_path)
    yield pool
    pool.close()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """What TensorRT-LLM's target is asked by."""
    made = Cache(tmp_path)
    yield made
    made.pool.unlink()


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway(tokenizer=TARGET, body_bytes=10_000) as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> openai.OpenAI:
    gateway.triton.answer = lambda _: two_pieces()
    return openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=20)
