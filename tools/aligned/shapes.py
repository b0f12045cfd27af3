"""The pairs that can be made: a target's shape, and how many of its layers are the draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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

    def config(self, layers: int) -> dict[str, Any]:
        """Arguments of `transformers.LlamaConfig` for a model of so many layers."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "max_position_embeddings": self.context,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }


SHAPES = {
    # For tests: seconds on a processor.
    "tiny": PairShape(64, 160, 4, 2, 16, 6, 2, 8192, 512, 1e4),
    # The layers of Llama 3.1 8B; a pass of the draft reads 1.2 billion weights.
    "1b-8b": PairShape(4096, 14336, 32, 8, 128, 32, 3, 128256, 8192, 5e5),
    # The layers of Qwen2.5 32B without its biases; a pass of the draft reads 3.2 billion weights.
    "3b-32b": PairShape(5120, 27648, 40, 8, 128, 64, 5, 152064, 8192, 1e6),
}
