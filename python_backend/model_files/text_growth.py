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

_OF_BYTES = 2  # each byte becomes a letter of one or two bytes
_STEPS = ("normalizers", "pretokenizers", "decoders")


def check_growth(tokenizer: Tokenizer) -> None:
    """Raises `ValueError` if a part of the tokenizer may make a text `MOST_GROWTH` times longer."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
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
    return _OF_BYTES if step["type"] == "ByteLevel" else 1.0
