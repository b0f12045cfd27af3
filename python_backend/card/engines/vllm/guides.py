"""A guide as vLLM's structured output: vLLM compiles the grammar of CARD's own engines."""

from __future__ import annotations

import json

from card.constraints import Guide
from card.constraints.grammar import grammar_of


def structured_output(guide: Guide) -> dict[str, str]:
    """Arguments of vLLM's `StructuredOutputsParams`. Raises `GuideError`."""
    text = grammar_of(guide)
    if not text.lstrip().startswith("{"):
        return {"grammar": text}
    # A grammar of llguidance, which vLLM takes in parts only.
    (grammar,) = json.loads(text)["grammars"]
    if (schema := grammar.get("json_schema")) is not None:
        return {"json": json.dumps(schema)}
    return {"grammar": grammar["lark_grammar"]}
