"""Writes the greedy texts of llama.cpp for a model, with the lead of each token, as JSON.

Run it in the peer's environment, which `scripts/bench` installs, or in any other that has the
packages of ``requirements/peers-llama_cpp.txt``:

    .peers/llama_cpp/bin/python tests/engines/llama_cpp_ids/make_texts.py \\
        models/gemma3-270m/*.gguf >tests/engines/llama_cpp_ids/gemma3-270m.json

A lead is how far the logit of a token is above that of the next best one.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from llama_cpp import Llama  # type: ignore[import-not-found]

TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "def fibonacci(n):\n",
    "The three laws of thermodynamics are",
    "Water boils at",
    "In 1969, the first man",
    "Ingredients for pancakes:\n- ",
    "Die Hauptstadt von Deutschland ist",
    "To be, or not to be, that is",
    "1, 2, 3, 4, 5,",
]


def written(model: Llama, prompt: str) -> dict[str, object]:
    """A prompt's ids, the ids of its text and their leads."""
    ids = model.tokenize(prompt.encode(), add_bos=True, special=True)
    model.reset()
    model.eval(ids)
    text: list[int] = []
    leads: list[float] = []
    for _ in range(TOKENS):
        logits = np.array(model.scores[model.n_tokens - 1])
        best, second = np.argsort(-logits)[:2]
        text.append(int(best))
        leads.append(round(float(logits[best] - logits[second]), 2))
        model.eval([int(best)])
    return {"prompt": prompt, "ids": ids, "text": text, "leads": leads}


if __name__ == "__main__":
    llama = Llama(sys.argv[1], n_ctx=256, n_threads=2, verbose=False, logits_all=True)
    print("[", ",\n".join(json.dumps(written(llama, prompt)) for prompt in PROMPTS), "]", sep="\n")
