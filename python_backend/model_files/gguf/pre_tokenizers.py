"""How a byte-level vocabulary makes tokens of a text, by ``tokenizer.ggml.pre``.

The expressions are those of the models' own tokenizers. A test compares the tokens of every name
with those of llama.cpp. The two differ in one case: llama.cpp takes the marks of a word for no part
of it under `tekken` and `gpt-4o`, because its expressions cannot say what those of the models say.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Pre:
    """What a name of ``tokenizer.ggml.pre`` says.

    expressions  each cuts the pieces that the one before it left
    takes_words  a piece that is a token is taken whole, whatever merges lead to
    adds_bos     a prompt begins with the bos token where the file says nothing about it
    """

    expressions: tuple[str, ...]
    takes_words: bool = False
    adds_bos: bool = False


_BY_NAMES: dict[tuple[str, ...], Pre] = {
    ("gpt-2", "mellum", "mpt", "olmo", "phi-2", "trillion"): Pre((_GPT2,)),
    ("default",): Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("smollm",): Pre((r"\p{N}", _GPT2)),
    ("falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "pixtral"): Pre(
        (_LLAMA3,), takes_words=True, adds_bos=True
    ),
    ("dbrx", "smaug-bpe"): Pre((_LLAMA3,)),
    ("deepseek-r1-qwen", "kormo", "megrez", "qwen2"): Pre((_QWEN2,)),
    ("qwen35",): Pre((_QWEN35,)),
    ("tekken",): Pre((_TEKKEN,), takes_words=True, adds_bos=True),
    ("gpt-4o", "kanana2", "llama4"): Pre((_GPT4O,)),
}
PRE_TOKENIZERS = {name: pre for names, pre in _BY_NAMES.items() for name in names}
"""By name."""
UNNAMED = PRE_TOKENIZERS["gpt-2"]
"""For a file without the field, as they were written before there was one."""


def pre_tokenizer(pre: Pre) -> PreTokenizer:
    """Cuts a text into words, and writes their bytes in the vocabulary's alphabet."""
    cuts = [Split(Regex(it), behavior="isolated") for it in pre.expressions]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
