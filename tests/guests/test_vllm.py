"""vLLM itself, in an environment of its own, with proposers that the project ships or fears."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def written(proposer: str) -> dict[str, Any]:
    """Texts and counters of vLLM with this proposer."""
    folders = f"{ROOT / 'python_backend'}:{ROOT / 'tests/guests'}"
    answer = subprocess.run(
        [
            ROOT / ".venv-vllm/bin/python",
            ROOT / "tests/guests/vllm_texts.py",
            ROOT / "tests/pair/target",
            proposer,
        ],
        env={**os.environ, "PYTHONPATH": folders},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=300,
    )
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("proposer", ["ngram", "hostile"])
def test_greedy_texts_of_vllm_are_its_own_when_a_class_proposes(proposer: str) -> None:
    found = written(proposer)
    assert found["counters"]["vllm:spec_decode_num_draft_tokens"] > 0
    assert found["texts"] == written("plain")["texts"]


def test_vllm_accepts_candidates_when_ngrams_propose() -> None:
    assert written("ngram")["counters"]["vllm:spec_decode_num_accepted_tokens"] > 0
