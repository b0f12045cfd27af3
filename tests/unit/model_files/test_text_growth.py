"""A tokenizer whose steps multiply a text is refused before it reads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Replace as DecoderReplace
from tokenizers.decoders import Sequence as Decoders
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from model_files import ModelFilesError, model_files_of

MULTIPLYING = {
    "normalizer": Normalizers([Replace("a", "aa")] * 40),
    "pre_tokenizer": PreTokenizers([ByteLevel()] * 40),
    "decoder": Decoders([DecoderReplace("a", "aa")] * 40),
}
ORDINARY = {
    "normalizer": Normalizers([Prepend("▁"), Replace(" ", "▁"), Replace(Regex(" {2,}"), "▁")]),
    "pre_tokenizer": ByteLevel(),
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


@pytest.mark.parametrize("part", ORDINARY)
def test_a_tokenizer_with_ordinary_steps_is_read(part: str, tmp_path: Path) -> None:
    assert model_files_of(saved(tmp_path, part, ORDINARY[part])).tokenizer().get_vocab_size() == 0
