"""Conversations on the real server: no turn reads its past again, and every text stays the same."""

from __future__ import annotations

from typing import Any

import pytest
from running_doors import MODEL, running_gateway
from running_service import RunningService, StartService

from card.engines.interface import BLOCK

OPENING = "# A module of small functions, each with a docstring and its types.\n" * 6
TURNS = [f"\n\ndef {name}(values: list[int]) -> int:\n" for name in ("one", "two", "six", "ten")]
SAMPLED = {"temperature": 0.8, "seed": 11, "top_p": 0.9}


class Talk:
    """Turns of one text, each of which continues the text so far."""

    def __init__(self, service: RunningService, **request: Any) -> None:
        self._service = service
        self._request = {"max_tokens": 40, "return_log_probs": True, **request}
        self.text = OPENING
        self.log_probs: list[float] = []
        self.reused: list[int] = []

    async def take_turn(self, asked: str) -> None:
        (reply,) = await self._service.ask(
            text_input=self.text + asked,
            return_perf_metrics=True,
            return_num_input_tokens=True,
            **self._request,
        )
        self.text += asked + reply.text
        self.log_probs += list(reply.tensors["output_log_probs"])
        new, reused, total = (
            int(reply.one(f"kv_cache_{name}_blocks"))
            for name in ("alloc_new", "reused", "alloc_total")
        )
        assert new + reused == total
        assert reused * BLOCK < int(reply.one("num_input_tokens"))
        self.reused.append(reused * BLOCK)


def gained(service: RunningService, name: str, decoding: str) -> float:
    return service.metric(f"card_prefix_{name}_total", decoding=decoding)


@pytest.mark.parametrize(("decoding", "sampling"), [("card", SAMPLED), ("autoregressive", {})])
async def test_five_turns_have_the_same_text_and_log_probabilities(
    server: RunningService, decoding: str, sampling: dict[str, Any]
) -> None:
    ask = {"decoding": decoding, **sampling}
    salt = f"{decoding} {sampling}"
    before = [gained(server, name, decoding) for name in ("hits", "hit_tokens")]
    kept = Talk(server, cache_salt=salt, **ask)
    afresh = Talk(server, skip_reading_prefix_cache=True, **ask)
    for asked in ("", *TURNS):
        await kept.take_turn(asked)
        await afresh.take_turn(asked)
    assert kept.text == afresh.text
    assert kept.log_probs == afresh.log_probs
    assert not any(afresh.reused)
    first, *others = kept.reused
    assert first == 0, "no other request had this salt"
    assert others == sorted(others)
    assert others[0] > 0

    def told() -> list[float]:
        now = [gained(server, name, decoding) for name in ("hits", "hit_tokens")]
        return [value - start for value, start in zip(now, before, strict=True)]

    await server.until(lambda: told() == [len(TURNS), sum(others)], "all is counted")


async def test_several_texts_of_a_prompt_read_it_once(server: RunningService) -> None:
    salt = "several texts"
    before = gained(server, "hits", "card")
    with running_gateway(server) as door:
        answer = door.client().completions.create(
            model=MODEL, prompt=OPENING, n=4, max_tokens=4, extra_body={"cache_salt": salt}
        )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    await server.until(lambda: gained(server, "hits", "card") == before + 3, "three are counted")


async def test_tenants_share_nothing_where_they_are_isolated(start_service: StartService) -> None:
    with start_service({"cache": {"isolated": True}}) as service, running_gateway(service) as door:
        client = door.client()

        def cached(**body: Any) -> int:
            answer = client.completions.create(
                model=MODEL, prompt=OPENING, max_tokens=4, temperature=0, extra_body=body
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            return answer.usage.prompt_tokens_details.cached_tokens or 0

        assert [cached(), cached()] == [0, 0]
        assert [cached(cache_salt="one"), cached(cache_salt="two")] == [0, 0]
        assert cached(cache_salt="one") == cached(cache_salt="two") > 0
        assert cached(cache_salt="one", skip_reading_prefix_cache=True) == 0
