"""Makes the heads of this folder with `speculators`; README.md says how to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash import core as dflash_core
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.dspark import core as dspark_core
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.models.peagle import core as peagle_core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

HERE = Path(__file__).parent
VOCABULARY, RANKED, TEXT, STEPS = 64, 24, 11, 3
MASK, BLOCK, ANCHOR = 63, 4, 5
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


def speculators_config(algorithm: str, tokens: int) -> SpeculatorsConfig:
    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=tokens)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def randomise(head: Any) -> None:
    """Random weights of a size that makes attention sharp, and random ids."""
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            noise = torch.randn_like(parameter)
            is_norm = parameter.ndim == 1
            parameter.copy_(1 + 0.3 * noise if is_norm else 1.5 * noise / noise.shape[-1] ** 0.5)
            if "embed" in name:
                parameter.copy_(0.5 * noise)
    ids = torch.randperm(VOCABULARY)[:RANKED].sort().values
    chosen = torch.zeros(VOCABULARY, dtype=torch.bool)
    chosen[ids] = True
    head.load_vocab_mappings(chosen, ids - torch.arange(RANKED))


def random_text() -> tuple[torch.Tensor, torch.Tensor]:
    """A text, and states of all its tokens but the last."""
    states = torch.randn(TEXT - 1, 3 * SHAPE["hidden_size"]).bfloat16()
    return torch.randint(VOCABULARY, (TEXT,)), states


def write(head: Any, name: str, expected: dict[str, torch.Tensor]) -> None:
    head.save_pretrained(HERE / name)
    (HERE / name / "config.py").unlink()
    save_file(expected, HERE / name / "expected.safetensors")


def make(name: str, decoder: Any, **switches: bool) -> None:
    """An EAGLE-3 head, and its passes over a text."""
    torch.manual_seed(len(name))
    decoder._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=decoder,
        draft_vocab_size=RANKED,
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        speculators_config=speculators_config("eagle3", STEPS),
        **switches,
    )
    head = Eagle3DraftModel(config).float().eval()
    randomise(head)
    found: dict[str, list[torch.Tensor]] = {"logits": [], "hidden": []}
    head.lm_head.register_forward_hook(lambda _, __, out: found["logits"].append(out[0].clone()))
    head.layers[-1].register_forward_hook(lambda _, __, out: found["hidden"].append(out[0].clone()))
    text, states = random_text()
    with torch.no_grad():
        head(
            hidden_states=states.float()[None],
            input_ids=text[None, 1:],
            document_ids=torch.zeros(1, TEXT - 1, dtype=torch.long),
            ttt_steps=STEPS,
        )
    stacked = {field: torch.stack(steps) for field, steps in found.items()}
    write(head, name, {"text": text, "states": states, **stacked})


def make_blocks(name: str, decoder: Any) -> None:
    """A P-EAGLE head, and its block of `BLOCK` tokens behind the text's first tokens."""
    torch.manual_seed(7)
    decoder._attn_implementation = "eager"
    config = PEagleSpeculatorConfig(
        transformer_layer_config=decoder,
        draft_vocab_size=RANKED,
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        mask_token_id=MASK,
        norm_before_residual=True,
        speculators_config=speculators_config("peagle", BLOCK),
    )
    head = PEagleDraftModel(config).float().eval()
    randomise(head)
    text, states = random_text()
    rows = ANCHOR + 1
    anchors = torch.cat([torch.arange(rows), torch.full((BLOCK - 1,), ANCHOR)])
    depths = torch.cat([torch.zeros(rows, dtype=torch.long), torch.arange(1, BLOCK)])
    peagle_core.generate_cod_sample_indices = lambda **_: (anchors, depths)
    peagle_core.compute_metrics = lambda **_: (None, {})  # the loss needs a GPU
    found: list[torch.Tensor] = []
    head.lm_head.register_forward_hook(lambda _, __, out: found.append(out[0].clone()))
    with torch.no_grad():
        head(
            hidden_states=states.float()[None],
            input_ids=text[None, 1:],
            document_ids=torch.zeros(1, TEXT - 1, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, TEXT - 1, SHAPE["hidden_size"]),
        )
    write(head, name, {"text": text, "states": states, "logits": found[0]})


def make_diffusion(name: str, kind: str, **switches: Any) -> None:
    """A DFlash or DSpark head, and its block of `BLOCK` rows at an anchor in the text. The text
    behind the anchor is what the head chooses, so that its serial head has read its own tokens."""
    torch.manual_seed(11)
    decoder = Qwen3Config(**SHAPE | {"num_hidden_layers": 2} | switches.pop("decoder", {}))
    decoder._attn_implementation = "eager"
    model, config_class = {
        "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
        "dspark": (DSparkDraftModel, DSparkSpeculatorConfig),
    }[kind]
    config = config_class(
        transformer_layer_config=decoder,
        draft_vocab_size=RANKED,
        block_size=BLOCK,
        aux_hidden_state_layer_ids=[1, 2, 4],
        mask_token_id=MASK,
        speculators_config=speculators_config(kind, BLOCK),
        **switches,
    )
    head = model(config).float().eval()
    randomise(head)
    text, states = random_text()
    found: list[torch.Tensor] = []

    def keep(logits: torch.Tensor, *_: Any, **__: Any) -> tuple[None, dict[str, Any]]:
        found.append(logits[0].clone())
        return None, {}

    anchor = torch.tensor([ANCHOR])
    dflash_core.select_anchors = lambda *_: (anchor, torch.ones(1, dtype=torch.bool))
    dflash_core.compute_metrics = dspark_core.compute_metrics = keep
    first = 0 if config.sample_from_anchor else 1
    for _ in range(BLOCK):
        with torch.no_grad():
            head(
                hidden_states=torch.cat([states, states[:1]]).float()[None],
                input_ids=text[None],
                loss_mask=torch.ones(1, TEXT),
                verifier_last_hidden_states=torch.zeros(1, TEXT, SHAPE["hidden_size"]),
                document_ids=torch.zeros(1, TEXT, dtype=torch.long),
                max_anchors=1,
            )
        best = found[-1][first:].argmax(-1)
        text[ANCHOR + 1 : ANCHOR + 1 + len(best)] = best + head.d2t[best]
    write(head, name, {"text": text, "states": states, "logits": found[-1][first:]})
    weights = load_file(HERE / name / "model.safetensors")  # the package leaves the embedding out
    weights["embed_tokens.weight"] = head.embed_tokens.weight.detach()
    save_file(weights, HERE / name / "model.safetensors")


if __name__ == "__main__":
    make("eagle3", LlamaConfig(**SHAPE))
    switches = {"norm_before_residual": True, "fc_norm": True, "norm_output": True}
    make("eagle3_normed", Qwen3Config(**SHAPE), **switches)
    make("eagle3_before_fc", LlamaConfig(**SHAPE | {"num_hidden_layers": 2}), norm_before_fc=True)
    make_blocks("peagle", LlamaConfig(**SHAPE | {"num_hidden_layers": 3}))
    make_diffusion("dflash", "dflash")
    for markov_kind in ("vanilla", "gated", "rnn"):
        make_diffusion(
            f"dspark_{markov_kind}", "dspark", markov_rank=6, markov_head_type=markov_kind
        )
    layers = ["sliding_attention", "full_attention"]
    window = {"use_sliding_window": True, "sliding_window": 3, "layer_types": layers}
    make_diffusion("dflash_window", "dflash", decoder=window)
    make_diffusion("dflash_wide", "dflash", decoder=window, sliding_window_non_causal=True)
