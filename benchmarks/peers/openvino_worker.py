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
_SOME_TOKEN = 5


class Peer:
    """One pipeline without a draft and one with it; both models are loaded in each."""

    def __init__(self, target: str, draft: str, dtype: str, threads: int) -> None:
        properties = {
            "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16", "float32": "f32"}[dtype],
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        }
        plain = openvino_genai.LLMPipeline(target, "CPU", **properties)
        speculative = openvino_genai.LLMPipeline(
            target,
            "CPU",
            draft_model=openvino_genai.draft_model(draft, "CPU", **properties),
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
        pipeline, prompt = self._pipelines[request["mode"]], _tensor(request["prompt"])
        self._forget_prompt(pipeline)
        started = time.perf_counter()
        result = pipeline.generate(prompt, config)
        seconds = time.perf_counter() - started
        first_token_s = result.perf_metrics.get_ttft().mean * MILLISECOND
        return Answer(list(result.tokens[0]), seconds, first_token_s)

    def _forget_prompt(self, pipeline: Any) -> None:
        """A pipeline keeps the KV cache of its last prompt. Here the next one is often the same,
        with another setting, and would be the only one among all systems that is not read."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = 1
        config.apply_chat_template = False
        pipeline.generate(_tensor([_SOME_TOKEN]), config)


def _tensor(tokens: list[int]) -> Any:
    return openvino.Tensor(np.array([tokens], np.int64))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--target", "--draft", "--dtype"):
        parser.add_argument(name, required=True)
    for name in ("--threads", "--answers"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    peer = Peer(options.target, options.draft, options.dtype, options.threads)
    versions = {name: version(name) for name in ("openvino", "openvino-genai")}
    serve(versions, peer.answer, options.answers)


if __name__ == "__main__":
    main()
