"""Makes the heads of this folder with `speculators`; README.md says how to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

HERE = Path(__file__).parent
VOCABULARY, RANKED, TEXT, STEPS = 64, 24, 11, 3
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def make(name: str, decoder: Any, **switches: bool) -> None:
    torch.manual_seed(len(name))
    decoder._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=decoder,
        draft_vocab_size=RANKED,
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **switches,
    )
    head = Eagle3DraftModel(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in head.named_parameters():
            noise = torch.randn_like(parameter)
            is_norm = parameter.ndim == 1
            parameter.copy_(1 + 0.3 * noise if is_norm else 1.5 * noise / noise.shape[-1] ** 0.5)
            if "embed" in parameter_name:
                parameter.copy_(0.5 * noise)
    ids = torch.randperm(VOCABULARY)[:RANKED].sort().values
    chosen = torch.zeros(VOCABULARY, dtype=torch.bool)
    chosen[ids] = True
    head.load_vocab_mappings(chosen, ids - torch.arange(RANKED))

    found: dict[str, list[torch.Tensor]] = {"logits": [], "hidden": []}
    head.lm_head.register_forward_hook(lambda _, __, out: found["logits"].append(out[0].clone()))
    head.layers[-1].register_forward_hook(lambda _, __, out: found["hidden"].append(out[0].clone()))
    text = torch.randint(VOCABULARY, (TEXT,))
    states = torch.randn(TEXT - 1, 3 * SHAPE["hidden_size"]).bfloat16()
    with torch.no_grad():
        head(
            hidden_states=states.float()[None],
            input_ids=text[None, 1:],
            document_ids=torch.zeros(1, TEXT - 1, dtype=torch.long),
            ttt_steps=STEPS,
        )
    head.save_pretrained(HERE / name)
    (HERE / name / "config.py").unlink()
    stacked = {field: torch.stack(steps) for field, steps in found.items()}
    save_file({"text": text, "states": states, **stacked}, HERE / name / "expected.safetensors")


if __name__ == "__main__":
    make("eagle3", LlamaConfig(**SHAPE))
    switches = {"norm_before_residual": True, "fc_norm": True, "norm_output": True}
    make("eagle3_normed", Qwen3Config(**SHAPE), **switches)
    make("eagle3_before_fc", LlamaConfig(**SHAPE | {"num_hidden_layers": 2}), norm_before_fc=True)
