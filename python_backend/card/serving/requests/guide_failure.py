"""The error that a client gets when its guide ends its text."""

from __future__ import annotations

from card.cache import Finish
from card.serving.requests.refusal import Refusal

_FIELD = "guided_decoding_guide"

_REASONS = {
    Finish.GUIDE_FAILED: "at some place it allows nothing; let every beginning of a text go on",
    Finish.GUIDE_ITEMS: (
        "one step takes more than the allowed number of parser items; make the grammar less "
        "ambiguous, or name fewer optional fields"
    ),
    Finish.GUIDE_FUEL: (
        "one step takes more than the allowed lexer fuel; make its regular expressions simpler or "
        "fewer"
    ),
    Finish.GUIDE_STATES: (
        "the text takes more than the allowed number of lexer states; use smaller counts in its "
        "regular expressions, or ask for fewer tokens"
    ),
}


def guide_failure(finish: Finish) -> Refusal | None:
    """The error of a text that its guide ended; None if the guide did not end it."""
    if finish not in _REASONS:
        return None
    what = f"{_FIELD} cannot be followed to the end of this text (guide_failed): {_REASONS[finish]}"
    return Refusal("INVALID_ARGUMENT", what, field=_FIELD)
