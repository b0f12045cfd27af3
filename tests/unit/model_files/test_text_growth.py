"""A tokenizer whose steps multiply a text is refused before it reads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Replace as DecoderReplace
from tokenizers.decoders import Sequence as Decoders
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.processors import Sequence as PostProcessors
from tokenizers.processors import TemplateProcessing

from model_files import ModelFilesError, model_files_of

TWICE = TemplateProcessing(single="$A $A", pair="$A $B", special_tokens=[])
MULTIPLYING = {
    "normalizer": Normalizers([Replace("a", "aa")] * 40),
    "pre_tokenizer": PreTokenizers([ByteLevel()] * 40),
    "post_processor": PostProcessors([TWICE] * 40),
    "decoder": Decoders([DecoderReplace("a", "aa")] * 40),
}
ORDINARY = {
    "normalizer": Normalizers([Prepend("▁"), Replace(" ", "▁"), Replace(Regex(" {2,}"), "▁")]),
    "pre_tokenizer": ByteLevel(),
    "post_processor": TemplateProcessing(
        single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)]
    ),
    "decoder": DecoderReplace("▁", " "),
}


def saved(folder: Path, part: str, steps: Any) -> Path:
    tokenizer = Tokenizer(BPE())
    setattr(tokenizer, part, steps)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.mark.parametrize("part", MULTIPLYING)
def test_a_tokenizer_that_multiplies_a_text_is_refused_by_the_part(
    part: str, tmp_path: Path
) -> None:
    files = model_files_of(saved(tmp_path, part, MULTIPLYING[part]))
    with pytest.raises(ModelFilesError, match=f"steps of its {part} may make a text 1.1e[+]12"):
        files.tokenizer()


def test_a_tokenizer_that_puts_a_long_text_before_each_is_refused(tmp_path: Path) -> None:
    files = model_files_of(saved(tmp_path, "normalizer", Prepend("a" * 1000)))
    with pytest.raises(ModelFilesError, match=r"steps of its normalizer may make a text 1e[+]03"):
        files.tokenizer()


def test_a_tokenizer_of_endless_words_is_refused(tmp_path: Path) -> None:
    words = WordPiece({"[UNK]": 0}, unk_token="[UNK]", max_input_chars_per_word=10**9)
    files = model_files_of(saved(tmp_path, "model", words))
    with pytest.raises(ModelFilesError, match=r"max_input_chars_per_word of its model is 10+; "):
        files.tokenizer()


@pytest.mark.parametrize("part", ORDINARY)
def test_a_tokenizer_with_ordinary_steps_is_read(part: str, tmp_path: Path) -> None:
    assert model_files_of(saved(tmp_path, part, ORDINARY[part])).tokenizer().get_vocab_size() == 0
