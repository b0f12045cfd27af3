"""What the state of the service is, from the states of its parts."""

from __future__ import annotations

import pytest

from card.serving.supervision.policy import CARD, DRAFT, REMOTE, STUBS, TARGET
from card.serving.supervision.sighting import STATES, GuardHealth, ModelHealth, state_of

WELL_GUARD = GuardHealth("well", 7)


def states(**of: str) -> dict[str, ModelHealth]:
    return {model: ModelHealth(of.get(model, "well")) for model in STUBS}


@pytest.mark.parametrize(
    ("answers", "models", "guard", "state"),
    [
        (True, {}, None, "ready"),
        (True, {}, WELL_GUARD, "ready"),
        (True, {DRAFT: "gone"}, WELL_GUARD, "degraded"),
        (True, {DRAFT: "recovering"}, None, "degraded"),
        (True, {REMOTE: "gone"}, None, "degraded"),
        (True, {TARGET: "silent"}, None, "unready"),
        (True, {DRAFT: "gone", CARD: "stopped"}, None, "unready"),
        (True, {}, GuardHealth("gone", 7), "unready"),
        (True, {DRAFT: "gone"}, GuardHealth("gone", 7), "unready"),
        (False, {}, None, "unready"),
        (False, {DRAFT: "gone"}, WELL_GUARD, "unready"),
    ],
)
def test_only_losing_what_drafts_leaves_a_service_that_answers(
    answers: bool, models: dict[str, str], guard: GuardHealth | None, state: str
) -> None:
    assert state in STATES
    assert state_of(answers, states(**models), guard) == state
