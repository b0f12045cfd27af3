"""Ours as a peer: the target alone, and with n-grams, in a process of its own.

Mode ``rows`` answers with the measured time of a pass of as many rows as the prompt has tokens.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from answering import Answer, serve

from bench.in_process import InProcess, with_speculation
from bench.measurement import Task
from bench.prompts import Prompt
from card.serving.requests.vocabulary import Vocabulary
from card.settings import load_settings


class Peer:
    """The target without a draft."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings = load_settings()
        changes = {"path": Path(options.target), "threads": options.threads}
        settings = settings.model_copy(
            update={"target": settings.target.model_copy(update=changes)}
        )
        settings = with_speculation(settings, drafter="ngram")
        pair = InProcess(settings, Vocabulary.load(settings.target.path).tokenizer)
        self._engine, self._threads = pair.target, options.threads
        self._stack = ExitStack()
        self._loops = self._stack.enter_context(pair.beside())

    def __call__(self, request: dict[str, Any]) -> Answer:
        prompt, mode = tuple(request["prompt"]), request["mode"]
        if mode == "rows":
            costs = self._engine.row_costs_ms
            return Answer([], 1e-3 * costs[len(prompt)], 0.0)
        task = Task(Prompt("shape", "", prompt), 0.0, request["seed"], request["max_tokens"])
        decoding = {"generate": "autoregressive", "ngram": "card"}[mode]
        found = self._loops.complete(task, decoding, threads=self._threads)
        return Answer(list(found.tokens or ()), found.seconds, found.first_token_s)


if __name__ == "__main__":
    serve(Peer)
