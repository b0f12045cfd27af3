"""The texts under which a service's memory is measured fit its limits and share no beginning."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_pair import TARGET
from tokenizers import Tokenizer

from card.settings import load_settings
from loading.held import shares_table
from loading.texts import long_texts


@pytest.mark.parametrize("limits", [{}, {"context_tokens": 700, "prompt_tokens": 300}])
def test_every_slot_has_a_text_of_its_own_that_fits(limits: dict[str, int], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    lines = "".join(f"\n  {name}: {value}" for name, value in limits.items()) or " {}"
    file.write_text(f"target: {{path: {TARGET}}}\ndraft: null\nlimits:{lines}\n")
    settings = load_settings(file)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    texts = [(text.text_input or "", text.max_tokens or 0) for text in long_texts(settings)]
    assert len({text[:50] for text, _ in texts}) == settings.cache.slots
    for text, new in texts:
        read = len(tokenizer.encode(text).ids)
        assert read <= settings.limits.prompt_tokens
        assert 0 < new <= settings.limits.context_tokens - read


def test_every_process_and_their_sum_are_shown() -> None:
    looks = {"ready": {"target": 10.0}, "then": {"target": 20.0, "draft": 1.0}}
    columns = [list(column.cells) for column in shares_table(looks).columns]
    assert columns == [["target", "draft", "all"], ["10", "0", "10"], ["20", "1", "21"]]
