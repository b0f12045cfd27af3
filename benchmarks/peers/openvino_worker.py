"""OpenVINO GenAI: plain generation, and speculation with the draft model."""

from __future__ import annotations

import argparse
import time
from functools import cached_property
from typing import Any

import numpy as np
import openvino
import openvino_genai
from answering import Answer, serve

_ALL_AT_ONCE = 2**31


class Peer:
    """One pipeline without a draft, and one with it that is loaded when it is first asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._properties = {
            "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16", "float32": "f32"}[options.dtype],
            "INFERENCE_NUM_THREADS": options.threads,
            "NUM_STREAMS": 1,
        }
        self._plain = self._pipeline()

    def _pipeline(self, **draft: Any) -> Any:
        return openvino_genai.LLMPipeline(
            self._options.target, "CPU", scheduler_config=_scheduling(), **draft, **self._properties
        )

    @cached_property
    def _speculative(self) -> Any:
        draft = openvino_genai.draft_model(self._options.draft, "CPU", **self._properties)
        return self._pipeline(draft_model=draft)

    def __call__(self, request: dict[str, Any]) -> Answer:
        pipeline = self._plain if request["mode"] == "generate" else self._speculative
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
        result = pipeline.generate(prompt, config)
        seconds = time.perf_counter() - started
        first_token_s = 1e-3 * result.perf_metrics.get_ttft().mean
        return Answer(list(result.tokens[0]), seconds, first_token_s)


def _scheduling() -> Any:
    """As a pipeline schedules by itself, but without its cache of prompts: here each prompt comes
    again with another setting, and every other system would read it again."""
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.max_num_batched_tokens = _ALL_AT_ONCE
    scheduling.enable_prefix_caching = False
    return scheduling


if __name__ == "__main__":
    serve(Peer)
