"""A chat template is tried in a process of its own before anything uses it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gateway_models import directory

from card.serving.model_files import chat_parameters
from model_files import model_files_of
from model_files.cautions import cautions
from model_files.template_trial import Trial, try_template

CHATML = (
    "{% for message in messages %}{{ '<' + message.role + '>' + message.content + eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tried(folder: Path, source: str) -> Trial:
    trial = try_template(model_files_of(directory(folder, chat_template=source)))
    assert trial is not None
    return trial


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ 'a' * 1500000000 }}", "it takes more than 256 MiB of memory"),
        (
            "{% if not add_generation_prompt %}{{ 'a' * 2000000 }}{% endif %}",
            "it writes more than ",
        ),
        ("{% for", "it cannot be parsed: unexpected 'end of template'"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_by_its_reason(
    tmp_path: Path, source: str, problem: str
) -> None:
    trial = tried(tmp_path, source)
    assert trial.problem.startswith(problem)
    assert not trial.answer_end
    assert chat_parameters(tmp_path) == {}
    (caution,) = cautions(model_files_of(tmp_path))
    assert str(tmp_path) in caution
    assert trial.problem in caution


def test_a_template_that_refuses_a_chat_can_be_used_by_others(tmp_path: Path) -> None:
    trial = tried(tmp_path, "{{ tools | length }}{{ messages[0].content }}")
    assert trial.problem == ""
    assert "has no len()" in trial.refusal
    assert chat_parameters(tmp_path)["chat_template"]


def test_a_models_own_template_passes_and_shows_how_it_ends_an_answer(tmp_path: Path) -> None:
    assert tried(tmp_path, CHATML) == Trial(answer_end="</s>\n")
    assert cautions(model_files_of(tmp_path)) == []


def test_a_process_that_cannot_be_started_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", "/nonexistent")
    assert "no process can be started" in tried(tmp_path, "{{ messages }} nowhere").problem
