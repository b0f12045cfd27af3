"""Every way to speculate on the real server, chosen by request."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from running_service import Refused, RunningService, StartService
from test_guided import OF_SCHEMA, SAMPLINGS
from test_guided import PROMPTS as GUIDED_PROMPTS

from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS

PROMPTS = (
    "def fibonacci(n):",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(path):\n    for name in",
    "    return sorted(",
)
WAYS = [{"decoding": name} for name, pacing in PACINGS.items() if pacing.drafts] + [
    {"growth": name} for name in GROWTHS
]
LOOSE = {"acceptance": "loose", "max_tokens": 160, "end_id": -1}


@pytest.fixture(scope="module")
def service(start_service: StartService) -> Iterator[RunningService]:
    speculation = {"rows": 12, "loose_window": 1, "loose_entropy": 0.1, "gamma": 4}
    with start_service({"speculation": {**speculation, "lossy_acceptance": ["loose"]}}) as running:
        yield running


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}])
async def test_streams_of_every_way_at_once_write_what_the_target_alone_writes(
    service: RunningService, sampling: dict[str, Any]
) -> None:
    request = {"max_tokens": 64, **sampling}
    alone = [await service.text(p, decoding="autoregressive", **request) for p in PROMPTS]
    wanted = [(way, number) for way in WAYS for number in range(len(PROMPTS))]
    texts = await asyncio.gather(
        *(service.text(PROMPTS[number], **way, **request) for way, number in wanted)
    )
    for (way, number), text in zip(wanted, texts, strict=True):
        assert text == alone[number], (way, PROMPTS[number])


async def test_a_killed_draft_never_changes_a_text_of_any_way(service: RunningService) -> None:
    """Nor one that a schema guides."""
    plain, guided = {"max_tokens": 200, "end_id": -1}, OF_SCHEMA | SAMPLINGS[1]
    asked = [(PROMPTS[0], plain, way) for way in WAYS]
    asked += [(prompt, guided, {"decoding": "card"}) for prompt in GUIDED_PROMPTS[:2]]
    alone = {
        prompt: await service.text(prompt, decoding="autoregressive", **request)
        for prompt, request, _ in asked[len(WAYS) - 1 :]
    }
    reading = [
        asyncio.create_task(service.text(prompt, **way, **request))
        for prompt, request, way in asked
    ]
    lost = service.pid_of("draft")
    before = service.metric("card_committed_tokens_total")
    await service.until(
        lambda: service.metric("card_committed_tokens_total") > before, "the streams flow"
    )
    os.kill(lost, signal.SIGKILL)
    assert await asyncio.gather(*reading) == [alone[prompt] for prompt, _, _ in asked]
    await service.until_back_without(lost)


async def test_loose_acceptance_tells_how_many_tokens_are_not_the_targets(
    service: RunningService,
) -> None:
    (answer,) = await service.ask(text_input=PROMPTS[0], **LOOSE)
    assert answer.one("foreign_tokens") > 0
    assert answer.text != await service.text(PROMPTS[0], **{**LOOSE, "acceptance": "exact"})
    (exact,) = await service.ask(text_input=PROMPTS[0], **{**LOOSE, "acceptance": "exact"})
    assert exact.one("foreign_tokens") == 0


async def test_loose_acceptance_is_refused_where_settings_do_not_list_it(
    server: RunningService,
) -> None:
    with pytest.raises(Refused, match=r"acceptance is 'loose'; it must be one of exact"):
        await server.ask(text_input="x", **LOOSE)
