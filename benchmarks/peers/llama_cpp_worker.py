"""llama.cpp by its Python package: plain, with prompt lookup, and with our draft model."""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from answering import Answer, serve
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding

GREEDY = {"temp": 0.0}


class DraftModel(LlamaDraftModel):
    """The package has no draft model of its own, only a place for one. Candidates are greedy."""

    def __init__(self, llama: Llama) -> None:
        self._llama = llama
        self.num_pred_tokens = 0

    def __call__(self, input_ids: np.ndarray, /, **_: Any) -> np.ndarray:
        # It keeps its KV cache as far as the texts are alike.
        drafted = self._llama.generate(input_ids.tolist(), **GREEDY)
        return np.fromiter(islice(drafted, self.num_pred_tokens), np.intc)

    def reset(self) -> None:
        self._llama.reset()


class Peer:
    """The target twice: only to verify candidates it keeps the logits of all rows of a pass."""

    def __init__(self, target: Path, draft: Path, context: int, threads: int) -> None:
        common: dict[str, Any] = {
            "n_ctx": context,
            "n_threads": threads,
            "n_threads_batch": threads,
            "verbose": False,
        }
        self._plain = Llama(str(target), **common)
        self._verifying = Llama(str(target), logits_all=True, **common)
        self._draft = DraftModel(Llama(str(draft / "model.gguf"), **common))

    def answer(self, request: dict[str, Any]) -> Answer:
        llama = self._plain if request["mode"] == "generate" else self._verifying
        if request["mode"] == "prompt_lookup":
            llama.draft_model = LlamaPromptLookupDecoding(
                num_pred_tokens=request["assistant_tokens"]
            )
        elif request["mode"] == "draft":
            self._draft.num_pred_tokens = request["assistant_tokens"]
            llama.draft_model = self._draft
        temperature = request["temperature"]
        sampling = {"temp": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        # Without these the same prompt, which comes again and again, would not be read again.
        llama.reset()
        self._draft.reset()
        llama.set_seed(request["seed"])
        tokens, first_token_s = [], 0.0
        started = time.perf_counter()
        written = llama.generate(request["prompt"], **(sampling if temperature else GREEDY))
        for token in islice(written, request["max_tokens"]):
            first_token_s = first_token_s or time.perf_counter() - started
            tokens.append(token)
        return Answer(tokens, time.perf_counter() - started, first_token_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--target", "--draft"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--dtype", help="not used: the file says it")
    for name in ("--context", "--threads", "--answers"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    peer = Peer(options.target, options.draft, options.context, options.threads)
    serve({"llama-cpp-python": version("llama-cpp-python")}, peer.answer, options.answers)


if __name__ == "__main__":
    main()
