"""Small random checkpoints of every family, and how a test reads a text with an engine.

The weights are scaled so that attention is sharp and logits are of the size that trained models
have: a mistake anywhere in the decoder shows as a difference of order one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    Starcoder2Config,
)
from transformers.utils import logging as transformers_logging

from card.engines import Engine, SequenceTokens

VOCABULARY = 96
CONTEXT = 512
SLIDING_WINDOW = 128
NARROW_WINDOW = 24
"""Of models with rows beyond their window in a text of a hundred tokens."""

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}

# Wavelengths of this rotary embedding lie on both sides of original_max_position_embeddings, so
# that a text of a hundred tokens meets kept, blended and stretched frequencies.
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
}
NO_SPECIAL: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""For families with default ids beyond `VOCABULARY`."""
_GEMMA_SHAPE: dict[str, Any] = _SHAPE | {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "sliding_window": NARROW_WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
}

FAMILIES: dict[str, PretrainedConfig] = {
    "llama2": LlamaConfig(**_SHAPE | {"num_key_value_heads": 4}),
    "llama3": LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE),
    "llama_linear_rope": LlamaConfig(
        **_SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "llama_with_biases": LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "smollm": LlamaConfig(
        **_SHAPE
        | {
            "hidden_size": 72,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
        rms_norm_eps=1e-5,
    ),
    "mistral": MistralConfig(**_SHAPE, sliding_window=None, head_dim=16),
    "mistral_sliding": MistralConfig(**_SHAPE, sliding_window=SLIDING_WINDOW, head_dim=12),
    "qwen2": Qwen2Config(**_SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen2_tied": Qwen2Config(**_SHAPE | {"tie_word_embeddings": True}),
    "qwen3": Qwen3Config(**_SHAPE, head_dim=20),
    "mistral_narrow": MistralConfig(**_SHAPE, sliding_window=NARROW_WINDOW, head_dim=16),
    "qwen3_sliding": Qwen3Config(
        **_SHAPE,
        head_dim=20,
        use_sliding_window=True,
        sliding_window=NARROW_WINDOW,
        max_window_layers=1,
    ),
    "qwen3_yarn": Qwen3Config(
        **_SHAPE, head_dim=32, rope_parameters=dict(_YARN_ROPE), pad_token_id=None
    ),
    "gemma3_text": Gemma3TextConfig(
        **_GEMMA_SHAPE,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "gemma3_text_capped": Gemma3TextConfig(**_GEMMA_SHAPE, final_logit_softcapping=3.0),
    "phi3": Phi3Config(
        **_SHAPE,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        sliding_window=NARROW_WINDOW,
        **NO_SPECIAL,
    ),
    "phi3_longrope": Phi3Config(
        **_SHAPE,
        rope_parameters=_LONG_ROPE,
        original_max_position_embeddings=256,
        **NO_SPECIAL,
    ),
    "smollm3": SmolLM3Config(
        **_SHAPE | {"num_hidden_layers": 4, "tie_word_embeddings": True}, **NO_SPECIAL
    ),
    "granite": GraniteConfig(
        **_SHAPE,
        embedding_multiplier=1.7,
        attention_multiplier=0.4,
        residual_multiplier=0.6,
        logits_scaling=0.5,
    ),
    "olmo2": Olmo2Config(**_SHAPE, **NO_SPECIAL),
    "starcoder2": Starcoder2Config(
        **_SHAPE | {"tie_word_embeddings": True}, sliding_window=NARROW_WINDOW, **NO_SPECIAL
    ),
}
"""One configuration per shape that the engine promises to run, by name."""


def build(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A random float32 model of this configuration."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_scaled(name, noise))
    return model


def _scaled(name: str, noise: torch.Tensor) -> torch.Tensor:
    if "norm" in name:
        return 1.0 + 0.3 * noise
    if noise.ndim == 1:
        return 0.5 * noise
    if "embed" in name:
        return 0.5 * noise
    gain = 3.0 if "lm_head" in name else 1.5
    return gain * noise / math.sqrt(noise.shape[-1])


def save(directory: Path, name: str, seed: int = 0) -> PreTrainedModel:
    """Save a random model of the family `name` as a Hugging Face directory; returns it."""
    model = build(FAMILIES[name], seed)
    model.save_pretrained(directory)
    return model


def save_pair(directory: Path) -> None:
    """Save a target and a draft of two families, with one tokenizer between them."""
    vocabulary = {f"token{i}": i for i in range(VOCABULARY)}
    for role, family in (("target", "llama3"), ("draft", "smollm")):
        save(directory / role, family)
        tokenizer = {"model": {"type": "BPE", "vocab": vocabulary}}
        (directory / role / "tokenizer.json").write_text(json.dumps(tokenizer))


def random_tokens(count: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocabulary, count)]


def reference_logits(model: PreTrainedModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """What `transformers` computes, [tokens, vocabulary]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits
    return logits[0].numpy()


def forward_rows(
    engine: Engine, batch: Sequence[SequenceTokens], *, alone: bool = False
) -> list[NDArray[np.float32]]:
    """One pass; the logits of each session's rows, [rows with logits, vocabulary]."""
    found = engine.forward(batch, alone=alone)
    wanted = [len(rows.tokens) if rows.logits is None else rows.logits for rows in batch]
    return [
        np.stack([logits.row(row) for row in range(count)])
        for logits, count in zip(found, wanted, strict=True)
    ]


@contextmanager
def opened(engine: Engine) -> Iterator[int]:
    """A session that is closed whatever happens."""
    session = engine.open_session()
    try:
        yield session
    finally:
        engine.close_session(session)


def read(
    engine: Engine,
    session: int,
    tokens: Sequence[int],
    chunks: Iterable[int],
    *,
    alone: bool = False,
) -> NDArray[np.float32]:
    """Append `tokens` to the session's prefix in chunks of these sizes, or of as many as a pass
    takes, the last one repeated.

    Returns the logits of every token, [tokens, vocabulary].
    """
    sizes = iter(chunks)
    size = next(sizes)
    found = []
    at = 0
    while at < len(tokens):
        chunk = tokens[at : at + min(size, engine.most_rows)]
        found += forward_rows(engine, [SequenceTokens(session, chunk)], alone=alone)
        engine.commit_kv(session, range(len(chunk)))
        at += len(chunk)
        size = next(sizes, size)
    return np.concatenate(found)


def read_alone(engine: Engine, tokens: Sequence[int], chunks: Iterable[int]) -> NDArray[np.float32]:
    """`read` in a session of its own, closed afterwards."""
    with opened(engine) as session:
        return read(engine, session, tokens, chunks)
