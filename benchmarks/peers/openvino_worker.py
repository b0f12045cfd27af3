"""OpenVINO GenAI: plain generation, and speculation with the draft model."""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino
import openvino_genai
from answering import Answer, serve

MILLISECOND = 1e-3
_ALL_AT_ONCE = 2**31


class Peer:
    """One pipeline without a draft and one with it; both models are loaded in each."""

    def __init__(self, target: str, draft: str, dtype: str, threads: int) -> None:
        properties = {
            "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16", "float32": "f32"}[dtype],
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        }
        plain = openvino_genai.LLMPipeline(
            target, "CPU", scheduler_config=_scheduling(), **properties
        )
        speculative = openvino_genai.LLMPipeline(
            target,
            "CPU",
            draft_model=openvino_genai.draft_model(draft, "CPU", **properties),
            scheduler_config=_scheduling(),
            **properties,
        )
        self._pipelines = {"generate": plain, "speculative": speculative}

    def answer(self, request: dict[str, Any]) -> Answer:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request["max_tokens"]
        config.ignore_eos = True
        config.apply_chat_template = False
        config.rng_seed = request["seed"]
        config.do_sample = request["temperature"] > 0
        if config.do_sample:
            config.temperature = request["temperature"]
        if request["mode"] == "speculative":
            config.num_assistant_tokens = request["assistant_tokens"]
        prompt = openvino.Tensor(np.array([request["prompt"]], np.int64))
        started = time.perf_counter()
        result = self._pipelines[request["mode"]].generate(prompt, config)
        seconds = time.perf_counter() - started
        first_token_s = result.perf_metrics.get_ttft().mean * MILLISECOND
        return Answer(list(result.tokens[0]), seconds, first_token_s)


def _scheduling() -> Any:
    """As a pipeline schedules by itself, but for its cache of prompts: here each prompt comes again
    and again, with another setting, and would be read by all systems but this one."""
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.max_num_batched_tokens = _ALL_AT_ONCE
    scheduling.enable_prefix_caching = False
    return scheduling


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--target", "--draft", "--dtype"):
        parser.add_argument(name, required=True)
    for name in ("--context", "--threads", "--answers"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    peer = Peer(options.target, options.draft, options.dtype, options.threads)
    versions = {name: version(name) for name in ("openvino", "openvino-genai")}
    serve(versions, peer.answer, options.answers)


if __name__ == "__main__":
    main()
