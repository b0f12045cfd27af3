"""Peers: each in an environment and a process of its own, which may fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from real_pair import TARGET
from tokenizers import Tokenizer

from bench.measurement import Task
from bench.peers import Mode, Peer, PeerError, line_up_peer
from bench.prompts import Prompt
from bench.runner import Contender
from card.settings import REPOSITORY_ROOT, load_settings

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
WORKER = """
from answering import Answer, serve
import os, sys
print("chatter of a library")
sys.stdout.flush()
def answer(request):
    if request["seed"] == 1:
        raise RuntimeError("no luck")
    if request["seed"] == 2:
        os._exit(3)
    return Answer(request["prompt"] + [5], 2.0, 0.5)
serve(lambda options: answer)
"""


@contextmanager
def standing_peer(home: Path, worker: str = WORKER) -> Iterator[list[Contender]]:
    """A peer that needs no installation, and what of it competes."""
    folder = home / "workers"
    folder.mkdir()
    (folder / "fake_worker.py").write_text(worker)
    answering = REPOSITORY_ROOT / "benchmarks" / "peers" / "answering.py"
    (folder / "answering.py").write_text(answering.read_text())
    pair: Any = SimpleNamespace(settings=load_settings())
    environment = Peer("fake", [], [Mode("openvino", "generate")], scripts=folder)
    with line_up_peer(environment, pair, TOKENIZER) as contenders:
        yield contenders


def test_peer_answers_with_tokens_when_its_libraries_print(tmp_path: Path) -> None:
    with standing_peer(tmp_path) as (peer,):
        for _ in range(2):
            found = peer.complete(Task(Prompt("a", "x", (3, 4)), 0.0, 0, 3))
            assert found.tokens == (3, 4, 5)
            assert (found.tokens_per_s, found.first_token_s) == (1.5, 0.5)
        assert peer.where == "peer"


def test_peer_says_why_when_it_fails_or_dies(tmp_path: Path) -> None:
    with standing_peer(tmp_path) as (peer,):
        with pytest.raises(PeerError, match="fake generate: RuntimeError: no luck"):
            peer.complete(Task(Prompt("a", "x", (3,)), 0.0, 1, 3))
        with pytest.raises(PeerError, match="the worker ended"):
            peer.complete(Task(Prompt("a", "x", (3,)), 0.0, 2, 3))
