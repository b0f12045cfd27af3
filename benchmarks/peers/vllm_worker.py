"""vLLM: plain generation, or one of its own ways to speculate, by the mode of the whole process.

python vllm_worker.py --mode ngram:3 --target ... (the options of `answering`). A mode is `vllm`,
plain decoding, or vLLM's name of a method and how many tokens it drafts. `--streams 8` writes each
text eight times at once.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from answering import Answer, serve

OPTIONS = {"ngram": {"prompt_lookup_max": 4, "prompt_lookup_min": 2}}
_KV_BYTES = 1 << 30


class Peer:
    """One engine."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import EngineArgs, LLMEngine

        method, _, tokens = options.mode.partition(":")
        speculative: dict[str, Any] = {"method": method, **OPTIONS.get(method, {})}
        if method == "draft_model":
            speculative["model"] = options.draft
        self._streams = options.streams
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=options.target,
                dtype=options.dtype,
                max_model_len=options.context,
                max_num_seqs=options.streams,
                enforce_eager=True,
                # Each prompt comes again, and every other system reads it again.
                enable_prefix_caching=False,
                kv_cache_memory_bytes=_KV_BYTES,
                skip_tokenizer_init=True,
                generation_config="vllm",
                disable_log_stats=True,
                speculative_config=(
                    {**speculative, "num_speculative_tokens": int(tokens)} if tokens else None
                ),
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
        texts: dict[str, list[int]] = {str(number): [] for number in range(self._streams)}
        prompt = TokensPrompt(prompt_token_ids=request["prompt"])
        started = time.perf_counter()
        first_token_s = 0.0
        for name in texts:
            self._engine.add_request(name, prompt, sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                texts[output.request_id] += output.outputs[0].token_ids
            if not first_token_s and all(texts.values()):
                first_token_s = time.perf_counter() - started
        tokens = [token for text in texts.values() for token in text]
        return Answer(tokens, time.perf_counter() - started, first_token_s)


if __name__ == "__main__":
    serve(Peer, mode="vllm", streams=1)
