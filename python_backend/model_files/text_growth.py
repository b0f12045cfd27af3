"""How much longer a tokenizer may make a text, before it is tried on one.

The steps of a ``tokenizer.json`` run one after another. Forty that each write "aa" for "a" make
10^12 letters of one, in the process that reads every prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

MOST_GROWTH = 256
"""T5 and BERT stay below 16."""

MOST_LETTERS_OF_A_WORD = 1024
"""WordPiece tries every part of a word, with work that grows with the cube of its letters. BERT's
words have at most 100."""

_OF_BYTES = 2  # each byte becomes a letter of one or two bytes
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_STEPS = ("normalizers", "pretokenizers", "processors", "decoders")


def check_growth(tokenizer: Tokenizer) -> None:
    """Raises `ValueError` if a part of the tokenizer may make a text `MOST_GROWTH` times longer, or
    its model reads words of more than `MOST_LETTERS_OF_A_WORD`."""
    letters = getattr(tokenizer.model, "max_input_chars_per_word", 0)
    if letters > MOST_LETTERS_OF_A_WORD:
        raise ValueError(
            f"max_input_chars_per_word of its model is {letters}; allowed: at most "
            f"{MOST_LETTERS_OF_A_WORD}"
        )
    for name in _PARTS:
        part = getattr(tokenizer, name)
        if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > MOST_GROWTH:
            raise ValueError(
                f"the steps of its {name} may make a text {growth:.3g} times longer; "
                f"allowed: at most {MOST_GROWTH}"
            )


def _growth(step: Mapping[str, Any]) -> float:
    """The most letters that a step writes for one."""
    if step["type"] == "Sequence":
        growth = 1.0
        for inner in next(step[name] for name in _STEPS if name in step):
            growth *= _growth(inner)
        return growth
    if step["type"] == "Replace":
        written = len(step["content"])
        if pattern := step["pattern"].get("String"):
            return max(1.0, written / len(pattern))
        return 1.0 + written  # an expression may find nothing between two letters
    if step["type"] == "Prepend":
        return 1.0 + len(step["prepend"])
    if step["type"] == "TemplateProcessing":
        ids = {name: len(token["ids"]) for name, token in step["special_tokens"].items()}
        named = (one.get("SpecialToken") for one in step["single"])
        return float(sum(1 if token is None else ids[token["id"]] for token in named))
    return _OF_BYTES if step["type"] == "ByteLevel" else 1.0
