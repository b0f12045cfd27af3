"""Pairs of random weights: they agree as asked, the draft is the target's begin, both load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from real_pair import TARGET
from safetensors.torch import load_file

from aligned import (
    SHAPES,
    TOLERANCE,
    Alignment,
    AlignmentError,
    Texts,
    find_scale,
    make_pair,
)
from card.engines import SequenceTokens
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = SHAPES["tiny"]
ASKED = 0.75


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Alignment]:
    folder = tmp_path_factory.mktemp("pair")
    found = make_pair(
        SHAPE, ASKED, folder, TARGET, dtype=torch.float32, texts=Texts(count=16, tokens=48)
    )
    return folder, found


def engine(folder: Path, *, tree: bool = False) -> TorchEngine:
    options = EngineOptions(
        context=128, sessions=1, paths=0 if tree else 1, pending=64, dtype="float32"
    )
    return TorchEngine.load(folder, options)


def test_pair_when_loaded_in_the_engine_agrees_as_asked(made: tuple[Path, Alignment]) -> None:
    folder, found = made
    assert abs(found.agreement - ASKED) <= TOLERANCE
    assert abs(found.held_out - ASKED) < 0.08
    target, draft = engine(folder / "target"), engine(folder / "draft")
    agreed = tokens = 0
    for prompt in range(8):
        both = [(model, model.open_session()) for model in (target, draft)]
        token = 17 + 401 * prompt
        for _ in range(48):
            chosen = []
            for model, session in both:
                row = model.forward([SequenceTokens(session, [token])])[0].row(0)
                model.commit_kv(session, [0])
                chosen.append(int(row.argmax()))
            agreed += chosen[0] == chosen[1]
            tokens += 1
            token = chosen[0]
        for model, session in both:
            model.close_session(session)
    assert abs(agreed / tokens - ASKED) < 0.12


def test_draft_when_written_is_the_first_layers_of_the_target(made: tuple[Path, Alignment]) -> None:
    folder, _ = made
    target = load_file(folder / "target" / "model.safetensors")
    draft = load_file(folder / "draft" / "model.safetensors")
    assert len(draft) == 9 * SHAPE.draft_layers + 3
    for name, weight in draft.items():
        assert torch.equal(weight, target[name]), name


def test_agreement_when_it_cannot_be_reached_is_refused() -> None:
    with pytest.raises(AlignmentError, match=r"no scale of the later layers.*0\.500"):
        find_scale(lambda scale: 0.5, 0.9)
