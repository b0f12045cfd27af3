"""vLLM: plain generation, or one of its own ways to speculate, by the mode of the whole process.

python vllm_worker.py --mode ngram --target ... (the options of `answering`)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from answering import Answer, serve

NGRAMS = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_KV_BYTES = 1 << 30


class Peer:
    """One engine."""

    def __init__(self, options: argparse.Namespace, mode: str) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(options.threads),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "HF_HUB_OFFLINE": "1",
        }
        from vllm import EngineArgs, LLMEngine

        speculative: dict[str, Any] = {}
        kind, _, tokens = mode.partition(":")
        if kind == "ngram":
            speculative = {**NGRAMS, "num_speculative_tokens": int(tokens)}
        elif kind == "draft_model":
            speculative = {
                "method": "draft_model",
                "model": options.draft,
                "num_speculative_tokens": int(tokens),
            }
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=options.target,
                dtype=options.dtype,
                max_model_len=options.context,
                max_num_seqs=1,
                enforce_eager=True,
                # Each prompt comes again, and every other system reads it again.
                enable_prefix_caching=False,
                kv_cache_memory_bytes=_KV_BYTES,
                skip_tokenizer_init=True,
                generation_config="vllm",
                disable_log_stats=True,
                speculative_config=speculative or None,
            )
        )

    def __call__(self, request: dict[str, Any]) -> Answer:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=request["temperature"],
            max_tokens=request["max_tokens"],
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            seed=request["seed"] if request["temperature"] else None,
        )
        tokens: list[int] = []
        started = time.perf_counter()
        first_token_s = 0.0
        self._engine.add_request("0", TokensPrompt(prompt_token_ids=request["prompt"]), sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                tokens += output.outputs[0].token_ids
            if tokens and not first_token_s:
                first_token_s = time.perf_counter() - started
        return Answer(tokens, time.perf_counter() - started, first_token_s)


if __name__ == "__main__":
    place = sys.argv.index("--mode")
    chosen = sys.argv[place + 1]
    del sys.argv[place : place + 2]
    serve(lambda options: Peer(options, chosen))
