"""The pool's sizes, from the settings that every process reads."""

from __future__ import annotations

from card.cache import Geometry
from card.engines.architecture import read_architecture
from card.settings import Settings

SPELLINGS = 2
"""Token sequences that one bad word may need: at the start of a text and after a space."""


def pool_geometry(settings: Settings) -> Geometry:
    """Room for every request that the limits admit."""
    limits, taps = settings.limits, settings.draft.taps if settings.has_head else ()
    hidden = read_architecture(settings.target.path).hidden if taps else 0
    return Geometry(
        slots=settings.cache.slots,
        nodes=settings.cache.nodes,
        prompt=limits.prompt_tokens,
        output=limits.max_tokens,
        bad_words=limits.bad_words * SPELLINGS,
        bad_word_tokens=limits.bad_word_tokens,
        guide=limits.guide_bytes,
        queue=limits.queued_requests,
        logit_bias=limits.logit_bias,
        likeliest=limits.top_log_probs,
        state_tokens=settings.cache.state_tokens if taps else 0,
        state_numbers=len(taps) * hidden,
    )
