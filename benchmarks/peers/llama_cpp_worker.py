"""llama.cpp by its Python package: plain, and with prompt lookup."""

from __future__ import annotations

import argparse
import time
from functools import cached_property
from itertools import islice
from typing import Any

from answering import Answer, serve
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

GREEDY = {"temp": 0.0}


class Peer:
    """The target, and a second copy for prompt lookup, which needs the logits of all rows of a
    pass."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._target = options.target
        self._common: dict[str, Any] = {
            "n_ctx": options.context,
            "n_threads": options.threads,
            "n_threads_batch": options.threads,
            "verbose": False,
        }
        self._plain = Llama(self._target, **self._common)

    @cached_property
    def _verifying(self) -> Llama:
        return Llama(self._target, logits_all=True, **self._common)

    def __call__(self, request: dict[str, Any]) -> Answer:
        llama = self._plain
        if request["mode"] == "prompt_lookup":
            llama, tokens = self._verifying, request["assistant_tokens"]
            llama.draft_model = LlamaPromptLookupDecoding(num_pred_tokens=tokens)
        temperature = request["temperature"]
        sampling = {"temp": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        # Otherwise a prompt that came before would not be read again.
        llama.reset()
        llama.set_seed(request["seed"])
        written, first_token_s = [], 0.0
        started = time.perf_counter()
        tokens = llama.generate(request["prompt"], **(sampling if temperature else GREEDY))
        for token in islice(tokens, request["max_tokens"]):
            first_token_s = first_token_s or time.perf_counter() - started
            written.append(token)
        return Answer(written, time.perf_counter() - started, first_token_s)


if __name__ == "__main__":
    serve(Peer)
