"""Chat templates render as `transformers` renders them, those of GGUF files included."""

from __future__ import annotations

from pathlib import Path

import gguf_models
from gateway_models import LLAMA, TALK, directory, tokenizer
from transformers import PreTrainedTokenizerFast

from card_gateway.template import read_model


def test_a_template_renders_as_transformers_renders_it(tmp_path: Path) -> None:
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(adds_bos=False), bos_token="<s>", eos_token="</s>"
    )
    expected = theirs.apply_chat_template(
        TALK, chat_template=LLAMA, tokenize=False, add_generation_prompt=True
    )
    template = read_model(directory(tmp_path, chat_template=LLAMA))[0]
    assert template.render(TALK) == expected
    assert "Hé?" in expected
    assert template.stop_words == ()


def test_a_gguf_files_template_renders_with_its_own_tokens(tmp_path: Path) -> None:
    folder, file = tmp_path / "other", tmp_path / "model.gguf"
    folder.mkdir()
    words = ["a", "b", "ab", *(f"t{index}" for index in range(91)), "<s>", "</s>"]
    about = gguf_models.with_tokens(
        words,
        [1] * 94 + [3, 3],
        merges=["a b"],
        bos_token_id=94,
        eos_token_id=95,
        add_bos_token=True,
        chat_template=LLAMA,
    )
    gguf_models.write(file, "llama", "F16", metadata=about)
    template, found = read_model(file)
    expected = read_model(directory(folder, chat_template=LLAMA))[0].render(TALK)
    assert f"<s>{template.render(TALK)}" == expected
    assert found.encode("ab").ids == [94, 2]
