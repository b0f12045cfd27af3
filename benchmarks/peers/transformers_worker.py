"""Hugging Face transformers: plain generation, assisted generation and prompt lookup."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from answering import Answer, serve
from transformers import AutoModelForCausalLM, PreTrainedModel


class Stopwatch(transformers.StoppingCriteria):
    """Stops nothing; notes when the first token was there."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.first_token_s: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.started
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Peer:
    """Both models in one process; all threads belong to whichever runs."""

    def __init__(self, target: str, draft: str, dtype: str) -> None:
        self._target = load(target, dtype)
        self._draft = load(draft, dtype)

    def answer(self, request: dict[str, Any]) -> Answer:
        arguments: dict[str, Any] = {}
        if request["mode"] == "assisted":
            arguments["assistant_model"] = self._draft
            self._schedule(request.get("assistant_tokens"))
        elif request["mode"] == "prompt_lookup":
            arguments["prompt_lookup_num_tokens"] = request["assistant_tokens"]
        sampled = request["temperature"] > 0
        if sampled:
            arguments.update(temperature=request["temperature"], top_k=0, top_p=1.0)
        torch.manual_seed(request["seed"])
        prompt = torch.tensor([request["prompt"]])
        watch = Stopwatch()
        with torch.inference_mode():
            output = self._target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=request["max_tokens"],
                do_sample=sampled,
                stopping_criteria=[watch],
                **arguments,
            )
        seconds = time.perf_counter() - watch.started
        tokens = output[0, prompt.shape[1] :].tolist()
        return Answer(tokens, seconds, watch.first_token_s or seconds)

    def _schedule(self, tokens: int | None) -> None:
        """A fixed number of draft tokens, or (None) what the library does by itself."""
        library = transformers.GenerationConfig()
        config = self._draft.generation_config
        config.num_assistant_tokens = tokens or library.num_assistant_tokens or 20
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = (
            0.0 if tokens else library.assistant_confidence_threshold or 0.4
        )


def load(path: str, dtype: str) -> PreTrainedModel:
    """A model that no token ends, so that every text has the length that was asked for."""
    file, source = Path(path), {}
    if file.is_file():
        file, source = file.parent, {"gguf_file": file.name}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file, dtype=getattr(torch, dtype), local_files_only=True, **source
    )
    model.train(False)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--target", "--draft", "--dtype"):
        parser.add_argument(name, required=True)
    for name in ("--context", "--threads", "--answers"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    peer = Peer(options.target, options.draft, options.dtype)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    serve(versions, peer.answer, options.answers)


if __name__ == "__main__":
    main()
