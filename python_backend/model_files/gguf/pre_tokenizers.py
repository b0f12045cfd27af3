"""How a byte-level vocabulary cuts a text before its merges apply, by ``tokenizer.ggml.pre``.

The expressions are those of the models' own tokenizers; `transformers` takes the same for a name.
"""

from __future__ import annotations

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

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

_EXPRESSIONS: dict[str, str | None] = {
    # GPT-2's expression, which the tokenizer library brings along.
    **dict.fromkeys(("default", "gpt-2", "mellum", "mpt", "olmo", "phi-2", "smollm", "trillion")),
    **dict.fromkeys(
        ("dbrx", "falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "pixtral", "smaug-bpe"),
        _LLAMA3,
    ),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "megrez", "qwen2"), _QWEN2),
    "qwen35": _QWEN35,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4"), _GPT4O),
}
PRE_TOKENIZERS = tuple(sorted(_EXPRESSIONS))
"""Names that are known."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """Cuts a text into words, and writes their bytes in the vocabulary's alphabet."""
    expression = _EXPRESSIONS[name]
    if expression is None:
        return ByteLevel(add_prefix_space=False)
    return Sequence(
        [
            Split(Regex(expression), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
