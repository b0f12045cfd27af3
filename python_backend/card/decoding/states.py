"""Publishes the hidden states of committed tokens, for a draft that reads them."""

from __future__ import annotations

from collections.abc import Sequence

from card.cache import States
from card.decoding.session import TargetSession
from card.engines import Engine


def publish_states(
    engine: Engine, session: TargetSession, confirmed: Sequence[int], states: States
) -> None:
    """Publish the hidden states of a pass's `confirmed` rows, before their KV joins the prefix. Of
    a prompt only the last tokens are published, as many as the slot holds.

    states  [rows, numbers] of the pass
    """
    first, places = engine.length(session.engine_session), session.slot.state_tokens
    if not places or not session.drafts or session.is_remote:
        return
    behind = session.history.prompt_length - places - first
    kept = confirmed[max(0, behind) :]
    if kept:
        session.slot.publish_states(first + len(confirmed) - len(kept), states[kept])
