"""Random pairs of real shapes that agree at a chosen rate, to time engines with.

The draft is the target's first layers, norm and head. The less the target's later layers add to the
hidden state, the more often both choose the same token; the scale of what they add is searched for.
Every tensor is drawn from a generator of its own, seeded by its name, so that one can be drawn
again with another scale without a copy of the model.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

TOLERANCE = 0.015
_SMALLEST, _LARGEST, _MOST_TRIALS = 1e-4, 1.0, 24
_HEAD_GAIN = 3.0
"""Standard deviation of the logits: about that of trained models."""
_CONTRIBUTING = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""Matrices that make what a layer adds to the hidden state."""


class AlignmentError(RuntimeError):
    """No scale reaches the requested agreement."""


@dataclass(frozen=True)
class PairShape:
    """A Llama-like target; its first `draft_layers` layers, norm and head are the draft.

    The draft is as wide as the target, so it has fewer layers than a model of its size would have:
    what a pass reads is that of the named size, how many layers it takes is not.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    layers: int
    draft_layers: int
    vocabulary: int
    context: int
    rope_theta: float

    def config(self, layers: int) -> LlamaConfig:
        """The configuration of a model of so many layers."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_size,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )


SHAPES = {
    # For tests: seconds on a processor.
    "tiny": PairShape(64, 160, 4, 2, 16, 6, 2, 8192, 512, 1e4),
    # The layers of Llama 3.1 8B; a pass of the draft reads 1.2 billion weights.
    "1b-8b": PairShape(4096, 14336, 32, 8, 128, 32, 3, 128256, 8192, 5e5),
}


@dataclass(frozen=True)
class Texts:
    """How much is written to measure an agreement: greedy texts behind random prompts."""

    count: int = 16
    tokens: int = 64
    prompt_tokens: int = 8


@dataclass(frozen=True)
class Alignment:
    """The agreement. `held_out` is that of texts that the search did not see."""

    asked: float
    agreement: float
    held_out: float
    scale: float
    tokens: int


def make_pair(
    shape: PairShape,
    asked: float,
    output: Path,
    tokenizer: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | None = None,
    texts: Texts | None = None,
) -> Alignment:
    """Write `output/target` and `output/draft` with the agreement `asked`, and `output/pair.json`.

    Only one model's weights are in memory at a time, plus one shard while it is written. Raises
    `AlignmentError` if the agreement is not reached within the trials.
    """
    texts = texts or Texts()
    target = random_target(shape, seed, dtype, device or torch.device("cpu"))

    def agreement_at(scale: float) -> float:
        _weigh_later_layers(target, shape, seed, scale)
        return _measure_agreement(target, shape.draft_layers, texts, seed)

    scale, reached = find_scale(agreement_at, asked)
    held_out = _measure_agreement(target, shape.draft_layers, texts, seed + 1)
    alignment = Alignment(asked, reached, held_out, scale, texts.count * texts.tokens)
    _write(target, tokenizer, output / "target")
    with torch.device("meta"):
        draft = LlamaForCausalLM(shape.config(shape.draft_layers))
    weights = target.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()}, assign=True)
    draft.config.dtype = target.dtype
    _write(draft, tokenizer, output / "draft")
    content = {
        "note": "random weights: compute and memory traffic are those of a real model, text is not",
        **asdict(alignment),
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": asdict(shape),
    }
    (output / "pair.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return alignment


def find_scale(agreement_at: Callable[[float], float], asked: float) -> tuple[float, float]:
    """Bisect the logarithm of the scale; the last scale that was tried is the one returned.

    The more the later layers contribute the less the two agree. What is measured is a count over a
    few texts, so near the end it need not fall evenly: the search ends within `TOLERANCE`.
    """
    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    for _ in range(_MOST_TRIALS):
        middle = (low + high) / 2
        found = agreement_at(math.exp(middle))
        if abs(found - asked) <= TOLERANCE:
            return math.exp(middle), found
        low, high = (middle, high) if found > asked else (low, middle)
    raise AlignmentError(
        f"no scale of the later layers between {_SMALLEST:g} and {_LARGEST:g} gives an agreement "
        f"within {TOLERANCE:g} of {asked:g}; the last gave {found:.3f}: measure longer texts or "
        "choose another seed"
    )


def random_target(
    shape: PairShape, seed: int, dtype: torch.dtype, device: torch.device
) -> LlamaForCausalLM:
    """A target: all its layers contribute fully."""
    with device:
        model = LlamaForCausalLM._from_config(shape.config(shape.layers), dtype=dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _draw(name, weight, seed)
    return model.requires_grad_(False).train(False)


def _weigh_later_layers(model: LlamaForCausalLM, shape: PairShape, seed: int, scale: float) -> None:
    """Draw the output matrices of the layers behind the draft's again, times `scale`."""
    with torch.no_grad():
        for index in range(shape.draft_layers, shape.layers):
            for suffix in _CONTRIBUTING:
                name = f"model.layers.{index}.{suffix}"
                weight = model.get_parameter(name)
                _draw(name, weight, seed)
                weight.mul_(scale)


def _draw(name: str, weight: Tensor, seed: int) -> None:
    if weight.ndim == 1:  # norms
        weight.fill_(1.0)
        return
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(weight.device).manual_seed(int.from_bytes(digest[:7], "big"))
    gain = _HEAD_GAIN if name.startswith("lm_head") else 1.0
    deviation = 1.0 if "embed_tokens" in name else gain / weight.shape[1] ** 0.5
    weight.normal_(0.0, deviation, generator=generator)


@torch.inference_mode()
def _measure_agreement(
    target: LlamaForCausalLM, draft_layers: int, texts: Texts, seed: int
) -> float:
    """Share of the target's greedy tokens that are the draft's first choice, which is read from the
    hidden states that enter layer `draft_layers`, in the target's own pass."""
    generator = torch.Generator().manual_seed(seed)
    shape = (texts.count, texts.prompt_tokens)
    tokens = torch.randint(target.config.vocab_size, shape, generator=generator).to(target.device)
    cache = DynamicCache(config=target.config)
    agreed = 0
    for _ in range(texts.tokens):
        output = target.model(
            input_ids=tokens, past_key_values=cache, use_cache=True, output_hidden_states=True
        )
        chosen = target.lm_head(output.last_hidden_state[:, -1]).argmax(-1)
        entering = output.hidden_states[draft_layers][:, -1]
        agreed += int((chosen == target.lm_head(target.model.norm(entering)).argmax(-1)).sum())
        tokens = chosen[:, None]
    return agreed / (texts.count * texts.tokens)


def _write(model: LlamaForCausalLM, tokenizer: Path, folder: Path) -> None:
    """Write the model, shard by shard, with the tokenizer of the folder `tokenizer`.

    Ids that the tokenizer lacks get a spelling like ``<9000>``. They have no merges: no text is
    ever encoded to them, but what the model writes can be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="2GB")
    content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    ids: dict[str, int] = content["model"]["vocab"]
    taken = {*ids.values(), *(added["id"] for added in content.get("added_tokens", []))}
    missing = (index for index in range(model.config.vocab_size) if index not in taken)
    ids.update({f"<{index}>": index for index in missing})
    written = json.dumps(content, ensure_ascii=False)
    (folder / "tokenizer.json").write_text(written, encoding="utf-8")
    shutil.copyfile(tokenizer / "tokenizer_config.json", folder / "tokenizer_config.json")
