"""Runs in vLLM's environment: the texts that vLLM writes with a proposer, as JSON on the last line.

Usage: vllm_texts.py MODEL PROPOSER, where PROPOSER is plain, ngram or hostile.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}

PROMPTS = [[5 + first, 6, 7, 8, 9, 10] for first in range(8)] + [[300, 4] * 20]
MAX_TOKENS = 96
CANDIDATES = 5


class Proposer:
    """What vLLM asks of a proposer class: a list for each row, empty for no candidates."""

    def __init__(self, config: Any) -> None:
        self.vocabulary = config.model_config.get_vocab_size()

    def load_model(self, *_: Any, **__: Any) -> None: ...

    def propose(self, sampled: Any, lengths: Any, tokens: Any, slot_mappings: Any = None) -> Any:
        return [
            self.behind(tokens[row, : lengths[row]].tolist()) if new else []
            for row, new in enumerate(sampled)
        ]

    def behind(self, text: list[int]) -> list[int]:
        raise NotImplementedError


class Ngrams(Proposer):
    """The project's n-grams of the text itself."""

    def behind(self, text: list[int]) -> list[int]:
        from card.speculation.ngram import NgramProposer

        proposer = NgramProposer()
        proposer.extend(text)
        return proposer.propose([], CANDIDATES)


class Hostile(Proposer):
    """Any ids of the vocabulary, sometimes fewer, sometimes the text's own."""

    def behind(self, text: list[int]) -> list[int]:
        chance = random.Random(len(text))
        if chance.random() < 0.3:
            return text[-CANDIDATES:]
        return [chance.randrange(self.vocabulary) for _ in range(chance.randrange(CANDIDATES + 1))]


def main(model: str, proposer: str) -> None:
    from vllm import LLM, SamplingParams, TokensPrompt

    arguments: dict[str, Any] = {}
    if proposer != "plain":
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": {"ngram": "vllm_texts.Ngrams", "hostile": "vllm_texts.Hostile"}[proposer],
            "num_speculative_tokens": CANDIDATES,
        }
    engine = LLM(
        model=model,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        enforce_eager=True,
        disable_log_stats=False,
        **arguments,
    )
    sampling = SamplingParams(
        temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False
    )
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    counters = {
        metric.name: metric.value
        for metric in engine.get_metrics()
        if "spec_decode" in metric.name and hasattr(metric, "value")
    }
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    print(json.dumps({"texts": texts, "counters": counters}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
