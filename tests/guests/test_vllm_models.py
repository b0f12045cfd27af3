"""Models that CARD's own engines refuse, under vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_models import SHAPES, Shape, save, state_space
from vllm_target_scene import PROMPTS, plainly, request_of, running_target

from card.engines import EngineError
from card.engines.architecture import read_architecture


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_greedy_texts_are_vllms_own_when_only_vllm_runs_the_model(
    tmp_path: Path, shape: Shape
) -> None:
    """By n-grams alone: a text of its own as its prompt, which it repeats or does not."""
    model = save(shape, tmp_path / "model")
    with pytest.raises(EngineError):
        read_architecture(model)
    target = {"path": str(model)}
    with running_target(tmp_path, target=target, speculation={"drafter": "ngram"}) as running:
        prompts = [[*prompt, *prompt, *prompt[:4]] * 3 for prompt in PROMPTS]
        requests = [request_of(prompt) for prompt in prompts]
        alone = running.ask([plainly(one) for one in requests])
        found = running.ask(requests)
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    assert sum(one.drafted for one in found) > 0


def test_hybrid_when_vllm_verifies_none_of_its_candidates_runs_with_one_row(tmp_path: Path) -> None:
    """On a processor; its load says what to set."""
    target = {"path": str(save(state_space, tmp_path / "model"))}
    speculation: dict[str, str | int] = {"drafter": "ngram"}
    for name in ("refused", "served"):
        (tmp_path / name).mkdir()
    with (
        pytest.raises(EngineError, match=r"set speculation\.rows to 1"),
        running_target(tmp_path / "refused", target=target, speculation=speculation),
    ):
        pass
    speculation |= {"rows": 1}
    with running_target(tmp_path / "served", target=target, speculation=speculation) as running:
        requests = [request_of(prompt) for prompt in PROMPTS]
        found, again = running.ask(requests), running.ask(requests)
    assert all(one.tokens for one in found)
    assert [one.tokens for one in again] == [one.tokens for one in found]
