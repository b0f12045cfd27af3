"""Every way to speculate on the real server, chosen by request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from every_way import Asked, write_so_while_one_is_struck, write_what_the_target_alone_writes
from running_service import ANSWER_S, Overrides, Refused, RunningService, StartService
from test_guided import OF_CALLS, OF_SCHEMA, SAMPLINGS
from test_guided import PROMPTS as GUIDED_PROMPTS

from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS

PROMPTS = (
    "def fibonacci(n):",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(path):\n    for name in",
    "    return sorted(",
)
WAYS = [
    *({"decoding": name} for name, pacing in PACINGS.items() if pacing.drafts),
    *({"growth": name} for name in GROWTHS),
    {"drafter": "ngram"},
    {"drafter": "ngram", "decoding": "pearl"},
    {"forbidden_drafter": "ngram"},
    {"forbidden_drafter": "tree", "decoding": "auto"},
]
LOOSE = {"acceptance": "loose", "max_tokens": 160, "end_id": -1}
DRAFTED = LOOSE | {"decoding": "draft_then_verify"}
"""The draft proposes at each step, whatever pays on the machine."""


@pytest.fixture(scope="module")
def service(start_service: StartService) -> Iterator[RunningService]:
    speculation = {"rows": 12, "loose_window": 1, "loose_entropy": 0.1, "num_draft_tokens": 4}
    settings: Overrides = {
        "speculation": {**speculation, "lossy_acceptance": ["loose"]},
        "limits": {"queue_timeout_s": ANSWER_S},  # more streams than slots
    }
    with start_service(settings) as running:
        yield running


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}])
async def test_streams_of_every_way_at_once_write_what_the_target_alone_writes(
    service: RunningService, sampling: dict[str, Any]
) -> None:
    await write_what_the_target_alone_writes(service, WAYS, PROMPTS, sampling)


async def test_a_killed_draft_never_changes_a_text_of_any_way(service: RunningService) -> None:
    """Nor one that a schema guides, nor one of calls."""
    plain = {"max_tokens": 200, "end_id": -1}
    asked: list[Asked] = [(PROMPTS[0], plain, way) for way in WAYS]
    for prompt, guided in zip(GUIDED_PROMPTS[:4], 2 * (OF_SCHEMA, OF_CALLS), strict=True):
        asked.append((prompt, guided | SAMPLINGS[1], {"decoding": "card"}))
    await write_so_while_one_is_struck(service, asked)


async def test_loose_acceptance_tells_how_many_tokens_are_not_the_targets(
    service: RunningService,
) -> None:
    loose, exact = (DRAFTED | {"acceptance": acceptance} for acceptance in ("loose", "exact"))
    (answer,) = await service.ask(text_input=PROMPTS[2], **loose)
    (right,) = await service.ask(text_input=PROMPTS[2], **exact)
    assert answer.one("foreign_tokens") > 0
    assert right.one("foreign_tokens") == 0
    assert answer.text != right.text


async def test_loose_acceptance_is_refused_where_settings_do_not_list_it(
    server: RunningService,
) -> None:
    with pytest.raises(Refused, match=r"acceptance is 'loose'; it must be one of exact"):
        await server.ask(text_input="x", **LOOSE)
