"""Prompt files: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_pair import TARGET
from tokenizers import Tokenizer

from bench.prompts import PromptsError, check_room, read_prompts
from card.settings import REPOSITORY_ROOT, LimitSettings

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))


def file_of(folder: Path, *lines: str) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(lines))
    return file


def line(name: str, prompt: str) -> str:
    return json.dumps({"id": name, "category": "functions", "prompt": prompt})


def test_a_prompt_has_the_tokens_that_the_server_gives_it(tmp_path: Path) -> None:
    text = "def größe(x):\n    return x\n"
    (prompt,) = read_prompts(file_of(tmp_path, line("a", text)), TOKENIZER)
    assert list(prompt.tokens) == TOKENIZER.encode(text).ids
    assert (prompt.id, prompt.text) == ("a", text)


def test_the_limit_takes_the_first_prompts(tmp_path: Path) -> None:
    file = file_of(tmp_path, line("a", "x"), "", line("b", "y"), line("c", "z"))
    assert [prompt.id for prompt in read_prompts(file, TOKENIZER, 2)] == ["a", "b"]


def test_the_prompts_of_the_benchmark_are_at_least_32_and_fit() -> None:
    prompts = read_prompts(REPOSITORY_ROOT / "benchmarks" / "prompts.jsonl", TOKENIZER)
    assert len(prompts) >= 32
    check_room(prompts, 128, LimitSettings())


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("nonsense", "line 2"),
        ("[1]", "line 2"),
        ('{"id": "b"}', "line 2: prompt"),
        ('{"prompt": "x"}', "line 2: id"),
        ('{"id": "b", "prompt": ""}', "line 2: prompt"),
        ('{"id": "a", "prompt": "x"}', "line 2: id 'a' is taken"),
    ],
)
def test_a_bad_line_is_refused_by_number_and_field(tmp_path: Path, bad: str, named: str) -> None:
    with pytest.raises(PromptsError, match=named):
        read_prompts(file_of(tmp_path, line("a", "x"), bad), TOKENIZER)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match="no prompt"):
        read_prompts(file_of(tmp_path, ""), TOKENIZER)
    with pytest.raises(PromptsError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl", TOKENIZER)


def test_what_the_limits_do_not_admit_is_refused_by_name(tmp_path: Path) -> None:
    prompts = read_prompts(file_of(tmp_path, line("long", "x = 1\n" * 20)), TOKENIZER)
    length = len(prompts[0].tokens)
    limits = LimitSettings(
        prompt_tokens=length, context_tokens=length + 8, max_tokens=16, default_max_tokens=8
    )
    check_room(prompts, 8, limits)
    with pytest.raises(PromptsError, match="prompt long has"):
        check_room(prompts, 9, limits)
    with pytest.raises(PromptsError, match="--max-tokens is 17; at most 16"):
        check_room(prompts, 17, limits)
