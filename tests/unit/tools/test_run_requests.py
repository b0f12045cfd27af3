"""What `scripts/run` asks for, and proposes to ask, is what the settings allow."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from real_pair import TARGET, pair_settings

from card.serving.requests.vocabulary import Vocabulary
from demonstration.requests import TRIED_PROMPT, TRIED_TOKENS, try_line

pytestmark = pytest.mark.usefixtures("no_overrides")

PROMPT_TOKENS = len(Vocabulary.load(TARGET).tokenizer.encode(TRIED_PROMPT).ids)
LIMITS: list[tuple[dict[str, Any], int]] = [
    ({}, TRIED_TOKENS),
    ({"max_tokens": 32}, 32),
    ({"context_tokens": PROMPT_TOKENS + 9}, 9),
    ({"context_tokens": PROMPT_TOKENS + 40, "max_tokens": 7}, 7),
    ({"context_tokens": PROMPT_TOKENS}, 1),  # what is then wrong, the service says
]


def tokens_of(line: str, http_inference: bool) -> int:
    words = shlex.split(line)
    if http_inference:
        return int(json.loads(words[words.index("-d") + 1])["max_tokens"])
    return int(words[words.index("--max-tokens") + 1])


@pytest.mark.parametrize(("limits", "tokens"), LIMITS)
@pytest.mark.parametrize("http_inference", [True, False])
def test_the_line_to_try_asks_for_what_is_allowed(
    limits: dict[str, Any], tokens: int, http_inference: bool
) -> None:
    settings = pair_settings(limits=limits, serving={"http_inference": http_inference})
    line = try_line(settings)
    assert tokens_of(line, http_inference) == tokens
    assert TRIED_PROMPT in shlex.split(line)[-1]


@pytest.mark.parametrize("source", ["{{ 1 | from_json }}", "{{ tools | length }}"])
def test_the_line_to_try_asks_for_a_completion_where_chats_are_refused(
    tmp_path: Path, source: str
) -> None:
    target = shutil.copytree(TARGET, tmp_path / "target")
    (target / "chat_template.jinja").write_text(source, encoding="utf-8")
    line = try_line(pair_settings(target={"path": str(target)}))
    assert json.loads(shlex.split(line)[-1])["text_input"] == TRIED_PROMPT
