"""`transformers` on the same pair and prompts, the usual choice without a server."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gpu.models import Extent, Pair


def compare_peers(pair: Pair, device: str, extent: Extent) -> Iterator[dict[str, Any]]:
    """Greedy, one stream: plain generation over a static cache, which `transformers` compiles on a
    GPU, and assisted generation with the draft. `tokens_per_s` is the median of the prompts."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    def loaded(path: Any) -> Any:
        model = AutoModelForCausalLM.from_pretrained(path, dtype="auto", local_files_only=True)
        model = model.to(device).eval()
        model.generation_config.eos_token_id = None  # every text has the length asked for
        model.generation_config.pad_token_id = 0
        return model

    prompts = [prompt.tokens for prompt in pair.prompts(extent.texts)]
    target = loaded(pair.target)
    compiles = torch.device(device).type == "cuda"
    static = {"cache_implementation": "static", "disable_compile": not compiles}
    plain = "transformers, static cache" + (", compiled" if compiles else "")
    speed = _tokens_per_s(target, prompts, extent.timed, device, static)
    yield {"system": plain, "tokens_per_s": speed}
    assisted = {"assistant_model": loaded(pair.draft)}
    speed = _tokens_per_s(target, prompts, extent.timed, device, assisted)
    yield {"system": "transformers, assisted", "tokens_per_s": speed}


def _tokens_per_s(
    target: Any,
    prompts: Sequence[Sequence[int]],
    count: int,
    device: str,
    options: dict[str, Any],
) -> float:
    """The first prompt runs once more beforehand: that is when things are compiled."""
    speeds = []
    for tokens in [prompts[0], *prompts]:
        prompt = torch.tensor([list(tokens)], device=device)
        asked = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": count, **options}
        started = time.perf_counter()
        with torch.inference_mode():
            written = target.generate(prompt, do_sample=False, **asked)
        found = written[0, len(tokens) :].tolist()  # waits for the device
        speeds.append(len(found) / (time.perf_counter() - started))
    return statistics.median(speeds[1:])
