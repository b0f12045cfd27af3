"""Heads on the target's hidden states compute what `speculators` computes, and states that come
late, or are not finite, are made good or left out."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from small_heads import HEADS, OPTIONS, save_target
from torch import Tensor

from card.engines import EngineError, Ranking, SequenceTokens
from card.engines.architecture import architecture_of
from card.speculation.drafters.heads.base import StatesEngine
from card.speculation.drafters.heads.block_engine import BlockEngine
from card.speculation.drafters.heads.blocks import HeadShape
from card.speculation.drafters.heads.dspark import DSpark
from card.speculation.drafters.heads.engine import HeadEngine
from card.speculation.drafters.heads.formats import head_of
from card.speculation.drafters.heads.loading import load_head

pytestmark = pytest.mark.usefixtures("one_thread")

EAGLE3 = HEADS / "eagle3"
KINDS = ("eagle3", "eagle3_normed", "eagle3_before_fc")
BLOCKS = (
    "dflash",
    "dflash_window",
    "dflash_wide",
    "dspark_vanilla",
    "dspark_gated",
    "dspark_rnn",
)
COMPILED = [
    pytest.param(False, id="torch"),
    pytest.param(
        True,
        id="openvino",
        marks=pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino"),
    ),
]
ANCHOR = 5
ALL = 24
"""Ids that the heads rank."""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return save_target(tmp_path / "target")


def states_of(expected: dict[str, Tensor]) -> NDArray[np.uint16]:
    return expected["states"].view(torch.int16).numpy().view(np.uint16)


def ranked(engine: StatesEngine, rows: SequenceTokens) -> NDArray[np.float32]:
    """[rows, ids], the log-probabilities of a pass by id."""
    rows.ranking = Ranking(ALL)
    ids, values = engine.forward([rows])[0].best()
    ordered: NDArray[np.float32] = np.take_along_axis(values, ids.argsort(axis=1), axis=1)
    return ordered


def assert_as_expected(found: NDArray[np.float32], logits: Tensor) -> None:
    np.testing.assert_allclose(found, torch.log_softmax(logits, -1).numpy(), atol=1e-4)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("kind", KINDS)
def test_head_computes_what_speculators_computes_when_states_end_and_it_goes_on(
    kind: str, compiled: bool, target: Path
) -> None:
    """The rows of a text with states, then a chain that goes on with the head's own states."""
    expected = load_file(HEADS / kind / "expected.safetensors")
    text, logits = expected["text"].tolist(), expected["logits"]
    engine = load_head(HEADS / kind, target, OPTIONS, compiled=compiled)
    assert isinstance(engine, HeadEngine)
    for known in range(1, len(text) - 2):
        session = engine.open_session()
        engine.hear(session, 0, states_of(expected)[:known])
        rows = SequenceTokens(session, text[: known + 1], logits=known)
        assert_as_expected(ranked(engine, rows), logits[0, :known])
        engine.commit_kv(session, range(known + 1))
        for step, token in enumerate(text[known + 1 : known + 3]):
            rows = SequenceTokens(session, [token], [step - 1])
            assert_as_expected(ranked(engine, rows), logits[step + 1, known - 1 : known])
            if kind != "eagle3_normed":
                hidden = engine._sessions[session].pending[-1].hidden
                assert hidden is not None
                np.testing.assert_allclose(
                    hidden.numpy(), expected["hidden"][step + 1, known - 1].numpy(), atol=1e-4
                )
        engine.close_session(session)


@pytest.mark.parametrize("compiled", COMPILED)
def test_masks_make_the_block_that_speculators_computes(compiled: bool, target: Path) -> None:
    """The text's rows, then masks, in one pass."""
    expected = load_file(HEADS / "peagle" / "expected.safetensors")
    logits, anchor, block = expected["logits"], 5, 4
    engine = load_head(HEADS / "peagle", target, OPTIONS, compiled=compiled)
    session = engine.open_session()
    engine.hear(session, 0, states_of(expected)[: anchor + 1])
    tokens = expected["text"].tolist()[: anchor + 2] + [63] * (block - 1)
    found = ranked(engine, SequenceTokens(session, tokens, logits=anchor + block))
    assert_as_expected(found, logits)


def block_of(engine: BlockEngine, expected: dict[str, Tensor], known: int) -> NDArray[np.float32]:
    """The block behind the text's first six tokens; the states of the first `known` are known."""
    session = engine.open_session()
    engine.hear(session, 0, states_of(expected)[:known])
    text = expected["text"].tolist()[: ANCHOR + 1]
    engine.forward([SequenceTokens(session, text[:-2], logits=0)])
    engine.commit_kv(session, range(len(text) - 2))
    masks = [63] * (len(expected["logits"]) - 1)
    rows = SequenceTokens(session, [*text[-2:], *masks], logits=len(masks) + 1)
    found = ranked(engine, rows)
    engine.close_session(session)
    return found


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("kind", BLOCKS)
def test_block_is_that_of_speculators_when_states_are_known(
    kind: str, compiled: bool, target: Path
) -> None:
    """States of the block's first token, which came early, change nothing."""
    expected = load_file(HEADS / kind / "expected.safetensors")
    engine = load_head(HEADS / kind, target, OPTIONS, compiled=compiled)
    assert isinstance(engine, BlockEngine)
    for known in (ANCHOR, ANCHOR + 1):
        assert_as_expected(block_of(engine, expected, known), expected["logits"])


def test_block_when_states_are_late_or_not_finite_begins_with_their_tokens(target: Path) -> None:
    expected = load_file(HEADS / "dflash/expected.safetensors")
    engine = load_head(HEADS / "dflash", target, OPTIONS)
    assert isinstance(engine, BlockEngine)
    late = block_of(engine, expected, ANCHOR - 2)
    assert np.isfinite(late).all()
    assert np.abs(late - block_of(engine, expected, ANCHOR)).max() > 0.01
    expected["states"][ANCHOR - 2 :] = torch.nan
    np.testing.assert_allclose(block_of(engine, expected, ANCHOR), late, atol=1e-5)


def test_head_of_safe_ai_is_read_as_that_of_speculators(tmp_path: Path, target: Path) -> None:
    config = json.loads((EAGLE3 / "config.json").read_text())
    mine = tmp_path / "safe_ai"
    mine.mkdir()
    named = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": ALL}
    (mine / "config.json").write_text(json.dumps(config["transformer_layer_config"] | named))
    tensors = load_file(EAGLE3 / "model.safetensors")
    renamed = {name.replace("layers.0.", "midlayer."): it for name, it in tensors.items()}
    save_file(renamed, mine / "model.safetensors")
    expected = load_file(EAGLE3 / "expected.safetensors")
    engine = load_head(mine, target, OPTIONS)
    session = engine.open_session()
    engine.hear(session, 0, states_of(expected))
    rows = SequenceTokens(session, expected["text"].tolist(), logits=10)
    assert_as_expected(ranked(engine, rows), expected["logits"][0])


def test_head_of_z_lab_is_read_with_taps_one_higher_and_the_targets_output(tmp_path: Path) -> None:
    """The same tensors in the formats of z-lab and of `speculators`; both omit the embedding."""
    target, ours, theirs = (tmp_path / name for name in ("target", "ours", "theirs"))
    model = tiny_models.save(target, "llama3")
    shape = json.loads((HEADS / "dflash/config.json").read_text())["transformer_layer_config"]
    hidden, vocabulary = model.config.hidden_size, model.config.vocab_size
    shape |= {"hidden_size": hidden, "vocab_size": vocabulary}
    z_lab = {
        "architectures": ["DFlashDraftModel"],
        "block_size": 4,
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 1]},
    }
    speculators = {
        "speculators_model_type": "dflash",
        "block_size": 4,
        "mask_token_id": 5,
        "aux_hidden_state_layer_ids": [1, 2],
        "transformer_layer_config": shape,
    }
    a = architecture_of(shape, tmp_path)
    config = head_of(shape | z_lab)
    assert config is not None
    head = DSpark(config, a, HeadShape(2, 2 * hidden, vocabulary))
    tensors = {name: it for name, it in head.state_dict().items() if name != "lm_head.weight"}
    output = {"lm_head.weight": model.get_output_embeddings().weight.detach()}
    found = []
    for folder, said, more in ((ours, speculators, output), (theirs, shape | z_lab, {})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(said))
        save_file(tensors | more, folder / "model.safetensors")
        engine = load_head(folder, target, OPTIONS)
        session = engine.open_session()
        engine.hear(session, 0, np.full((2, 2 * hidden), 0x3F00, np.uint16))
        rows = SequenceTokens(session, [7, 8, 9, 5, 5], logits=3, ranking=Ranking(4))
        found.append(engine.forward([rows])[0].best())
        assert head_of(said).taps(9) == (1, 2)  # type: ignore[union-attr]
    assert (found[0][0] == found[1][0]).all()
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-6)


@pytest.mark.parametrize("garbage", ["late", "not finite"])
def test_rows_are_computed_again_when_their_states_come(garbage: str, target: Path) -> None:
    expected = load_file(EAGLE3 / "expected.safetensors")
    text, states = expected["text"].tolist(), states_of(expected)
    engine = load_head(EAGLE3, target, OPTIONS)
    session = engine.open_session()
    engine.hear(session, 0, states[:4])
    if garbage == "not finite":  # 0x7FC0 is NaN
        engine.hear(session, 4, np.full_like(states[4:6], 0x7FC0))
    engine.forward([SequenceTokens(session, text[:8], logits=1)])
    engine.commit_kv(session, range(8))
    engine.refresh(session)
    if garbage == "not finite":  # those states will never come, and no row is read again for them
        assert engine.length(session) == 8
        return
    assert engine.length(session) == 8  # late states: not yet
    engine.hear(session, 4, states[4:])
    engine.refresh(session)
    assert engine.length(session) == 5
    rows = SequenceTokens(session, text[5:], logits=6)
    assert_as_expected(ranked(engine, rows), expected["logits"][0, 4:])


def test_surviving_rows_keep_their_kv_when_others_are_dropped(target: Path) -> None:
    expected = load_file(EAGLE3 / "expected.safetensors")
    text, states = expected["text"].tolist(), states_of(expected)
    engine = load_head(EAGLE3, target, OPTIONS)
    found = []
    for wrong in (False, True):
        session = engine.open_session()
        engine.hear(session, 0, states[:3])
        engine.forward([SequenceTokens(session, text[:4], logits=0)])
        engine.commit_kv(session, range(4))
        tokens, parents = [text[4], text[5]], [-1, 0]
        if wrong:  # a sibling of each row
            tokens, parents = [7, text[4], 8, text[5]], [-1, -1, 0, 1]
        engine.forward([SequenceTokens(session, tokens, parents, logits=0)])
        confirmed, surviving = ([1], [3]) if wrong else ([0], [1])
        engine.commit_kv(session, confirmed, surviving)
        found.append(ranked(engine, SequenceTokens(session, [text[6]], [0])))
        engine.close_session(session)
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fc.weight", torch.zeros(32, 64), r"fc.weight has the shape \[32, 64\]"),
        ("norm.weight", torch.full((32,), torch.nan), "norm.weight is not finite"),
        ("d2t", torch.tensor([3, 0]), "d2t names ids that do not ascend"),
        ("extra", torch.zeros(1), "extra is unknown"),
        ("norm.weight", None, "norm.weight is missing"),
    ],
)
def test_load_refuses_a_head_that_does_not_fit(
    name: str, value: Tensor | None, message: str, tmp_path: Path, target: Path
) -> None:
    tensors = load_file(EAGLE3 / "model.safetensors")
    tensors.pop(name, None)
    if value is not None:
        tensors[name] = value
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((EAGLE3 / "config.json").read_text())
    with pytest.raises(EngineError, match=message):
        load_head(tmp_path, target, OPTIONS)


def test_load_says_how_to_convert_a_pickle(tmp_path: Path, target: Path) -> None:
    (tmp_path / "config.json").write_text((EAGLE3 / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(EngineError, match="convert it there: python -c"):
        load_head(tmp_path, target, OPTIONS)
