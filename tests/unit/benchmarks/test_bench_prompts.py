"""Prompts, questions and options of the benchmark: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_pair import TARGET
from tokenizers import Tokenizer

from bench.prompts import PromptsError, read_prompts

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


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("nonsense", "line 2"),
        ("[1]", "line 2"),
        ('{"id": "b"}', "line 2: .*either a prompt or messages"),
        ('{"id": "b", "prompt": "x", "messages": [{"role": "user", "content": "y"}]}', "either"),
        ('{"id": "b", "messages": [{"role": "user"}]}', "line 2: messages.0.content"),
        ('{"prompt": "x"}', "line 2: id"),
        ('{"id": "b", "prompt": ""}', "line 2: prompt"),
        ('{"id": "a", "prompt": "x"}', "line 2: id 'a' is taken"),
    ],
)
def test_a_bad_line_is_refused_by_number_and_field(tmp_path: Path, bad: str, named: str) -> None:
    with pytest.raises(PromptsError, match=named):
        read_prompts(file_of(tmp_path, line("a", "x"), bad), TOKENIZER)
    with pytest.raises(PromptsError, match="no prompt"):
        read_prompts(file_of(tmp_path, ""), TOKENIZER)
    with pytest.raises(PromptsError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl", TOKENIZER)
