"""A PARD-2 draft computes what AMD's recipe computes (arXiv 2605.08632): the embedding of a token,
plus a scaled projection of the target's states of the token before; masks repeat the last ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from safetensors.torch import save_file
from small_heads import OPTIONS
from tiny_models import VOCABULARY, random_tokens

from card.engines import EngineError, Ranking, SequenceTokens
from card.settings import SettingsError, load_settings
from card.speculation.drafters.heads.engine import HeadEngine
from card.speculation.drafters.heads.loading import load_head

pytestmark = pytest.mark.usefixtures("one_thread")

TAPS, MASK, SCALE, HIDDEN = [-1, -2], VOCABULARY - 1, 0.3, 48
TEXT = random_tokens(9)


def saved(directory: Path, family: str = "llama3") -> tuple[Path, Path, torch.nn.Module]:
    """A draft with a projection, a target, and the draft as `transformers` runs it."""
    target, draft = directory / "target", directory / "draft"
    tiny_models.save(target, "llama3", seed=1)
    model = tiny_models.save(draft, family)
    config = json.loads((draft / "config.json").read_text())
    config |= {
        "pard2": True,
        "pard_token": MASK,
        "pard2_scale": SCALE,
        "pard2_target_layers": TAPS,
        "pard2_proj_bias": False,
    }
    (draft / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    projection = torch.randn(model.config.hidden_size, len(TAPS) * HIDDEN) / 8
    save_file({"target_proj.weight": projection}, draft / "warp_model.safetensors")
    return target, draft, model


@pytest.mark.parametrize("family", ["llama3", "qwen2_tied", "qwen3"])
@pytest.mark.parametrize("known", [0, 5, 9])
def test_block_is_that_of_amds_recipe(known: int, family: str, tmp_path: Path) -> None:
    """The states of the text's first `known` tokens are known."""
    target, draft, model = saved(tmp_path, family)
    states = torch.randn(len(TEXT), len(TAPS) * HIDDEN).bfloat16()
    engine = load_head(draft, target, OPTIONS)
    session = engine.open_session()
    engine.hear(session, 0, states.view(torch.int16).numpy().view(np.uint16)[:known])
    tokens = [*TEXT, MASK, MASK]
    rows = SequenceTokens(session, tokens, logits=3, ranking=Ranking(VOCABULARY))
    ids, found = engine.forward([rows])[0].best()
    ordered = np.take_along_axis(found, ids.argsort(axis=1), axis=1)

    assert isinstance(engine, HeadEngine)
    projection = engine._head.state_dict()["target_proj.weight"]
    features = torch.zeros(len(tokens), model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    for row in range(1, len(tokens)):
        at = min(row - 1, known - 1)
        if at >= 0:
            features[row] = SCALE * projection @ states[at].float()
    with torch.inference_mode():
        embedded = model.get_input_embeddings()(torch.tensor([tokens]))  # type: ignore[operator]
        logits = model(inputs_embeds=embedded + features[None]).logits[0, -3:]
    expected = torch.log_softmax(logits, dim=-1).numpy()
    np.testing.assert_allclose(ordered, expected, atol=1e-4)


def test_settings_take_masks_blocks_and_taps_from_the_draft(tmp_path: Path) -> None:
    target, draft, _ = saved(tmp_path)
    sections: dict[str, Any] = {"target": {"path": str(target)}, "limits": {"context_tokens": 512}}
    settings = load_settings(draft={"path": str(draft)}, **sections)
    assert (settings.drafter, settings.draft.taps) == ("pard2", (-1, -2))
    assert (settings.draft.mask_ids, settings.speculation.block) == ((MASK,), 15)
    config = json.loads((draft / "config.json").read_text()) | {"pard2_target_layers": "all"}
    (draft / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match="pard2_target_layers is 'all'; allowed: a list"):
        load_settings(draft={"path": str(draft)}, **sections)


def test_load_says_how_to_convert_the_projection(tmp_path: Path) -> None:
    target, draft, _ = saved(tmp_path)
    (draft / "warp_model.safetensors").rename(draft / "warp_model.bin")
    with pytest.raises(EngineError, match=r"warp_model.bin\), which is not read; convert it"):
        load_head(draft, target, OPTIONS)
