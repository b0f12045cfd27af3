"""`transformers` on the same pair and prompts: what people use where nothing is served."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpu.models import Extent, Pair


@dataclass(frozen=True)
class PeerSpeed:
    """Greedy, one stream. tokens_per_s: the median of the prompts, prompts included."""

    system: str
    tokens_per_s: float


def compare_peers(pair: Pair, device: str, extent: Extent) -> Iterator[PeerSpeed]:
    """Plain generation over a static cache, which `transformers` compiles on a GPU, and assisted
    generation with the draft."""
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
    plain = "transformers, static cache" + (", compiled" if compiles else "")
    static = {"cache_implementation": "static", "disable_compile": not compiles}
    yield PeerSpeed(plain, _tokens_per_s(target, prompts, extent.timed, device, static))
    assisted = {"assistant_model": loaded(pair.draft)}
    name = "transformers, assisted"
    yield PeerSpeed(name, _tokens_per_s(target, prompts, extent.timed, device, assisted))


def _tokens_per_s(
    target: Any,
    prompts: Sequence[Sequence[int]],
    count: int,
    device: str,
    options: dict[str, Any],
) -> float:
    """The first prompt once more beforehand: that is when things are compiled."""
    speeds = []
    for tokens in [prompts[0], *prompts]:
        prompt = torch.tensor([list(tokens)], device=device)
        started = time.perf_counter()
        with torch.inference_mode():
            written = target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=count,
                do_sample=False,
                **options,
            )
        found = written[0, len(tokens) :].tolist()  # waits for the device
        speeds.append(len(found) / (time.perf_counter() - started))
    return statistics.median(speeds[1:])
