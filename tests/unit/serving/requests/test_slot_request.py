"""What a session decodes, by what a client asked for."""

from __future__ import annotations

import asyncio

import pytest
from real_pair import TARGET

from card.serving.requests.slot_request import SlotRequests
from card.serving.requests.vocabulary import Vocabulary
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings


@pytest.mark.parametrize(
    ("min_tokens", "min_length", "least"), [(0, 0, 0), (7, 0, 7), (0, 7, 7), (5, 7, 7), (7, 5, 7)]
)
def test_min_length_when_sent_beside_min_tokens_is_the_same_bound(
    min_tokens: int, min_length: int, least: int
) -> None:
    requests = SlotRequests(Settings(), Vocabulary.load(TARGET))
    request = GenerateRequest(
        input_ids=(1, 2), max_tokens=9, min_tokens=min_tokens, min_length=min_length
    )
    assert requests.of(request).parameters.min_tokens == least


async def test_prediction_is_tokenized_when_other_requests_go_on() -> None:
    vocabulary = Vocabulary.load(TARGET)
    requests = SlotRequests(Settings(), vocabulary)
    request = GenerateRequest(input_ids=(1, 2), max_tokens=9, prediction="1 2")
    checking = asyncio.ensure_future(requests.checked(request))
    await asyncio.sleep(0)
    assert not checking.done()
    assert (await checking).prediction.tolist() == vocabulary.predicted_tokens("1 2")
