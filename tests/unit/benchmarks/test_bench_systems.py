"""Random models of large shapes, and ways of auto."""

from __future__ import annotations

from bench.shape_models import SHAPES, matrices
from bench.ways import lines, step_costs
from card.cache import Candidates
from card.cache.reports import Step


def test_q4_k_m_gives_more_bits_to_the_layers_that_llama_cpp_gives_them() -> None:
    kinds = {name: kind for name, kind, *_ in matrices(SHAPES["1b"], "Q4_K_M", 64)}
    more = [n for n in range(16) if kinds[f"blk.{n}.ffn_down"] == "Q6_K"]
    assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    assert kinds["blk.0.ffn_up"] == "Q4_K"
    assert kinds["token_embd"] == "Q6_K"


def test_step_costs_when_nothing_was_queried_go_by_the_commit_before() -> None:
    read = Step(Candidates([], []), 0, 0, 1, 0, 0, 900_000_000)
    verified = Step(Candidates([5, 6], [-1, 0]), 2, 2, 3, 1, 905_000_000, 912_500_000)
    plain = Step(Candidates([], []), 0, 0, 1, 4, 0, 920_000_000)
    assert list(step_costs([read, verified, plain])) == [(3, 12.5), (1, 7.5)]


def test_lines_when_texts_are_unlike_compare_each_text_with_itself() -> None:
    speeds = {"alone": [100.0, 50.0], "beside": [200.0, 25.0]}
    costs = {"alone": {1: [10.0]}, "beside": {1: [12.0], 4: [20.0, 40.0, 21.0]}}
    report = list(lines(speeds, costs, {"alone": (90.0, 0.25), "beside": (120.0, 0.75)}))
    assert "| beside | 112.5 | 1.00 (0.50–2.00) | 0.75 |" in report
    assert "| beside | 12.0 | 21.0 |" in report
    assert "| alone | 10.0 |  |" in report
