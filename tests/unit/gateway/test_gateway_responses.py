"""`/v1/responses` before a stand-in for Triton, through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from client_double import refusal, response
from gateway_double import (
    RunningGateway,
    number,
    pieces_of,
    prompt,
    running_gateway,
    scored,
    tell,
    two_pieces,
)
from real_pair import TARGET

from card_gateway.errors import ApiError
from card_gateway.responses.body import LOG_PROBABILITIES
from card_gateway.responses.items import MOST_REFERRED_BYTES, ItemMemory, ItemReference

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
ANSWER = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


def test_a_text_is_answered_whole(gateway: RunningGateway, client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="ensemble",
        instructions="Be brief.",
        input="hello",
        max_output_tokens=4,
        store=True,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": None},
    )
    assert prompt(gateway) == "Be brief.\n\nUser: hello\nAssistant:"
    assert answer.output_text == "héllo wörld"
    assert (answer.status, answer.error) == ("incomplete", None)
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 4)


@pytest.mark.parametrize("size", [3, 1000])
def test_a_stream_tells_of_every_item_and_adds_up(
    gateway: RunningGateway, client: openai.OpenAI, size: int
) -> None:
    gateway.triton.answer = lambda _: pieces_of(ANSWER, size)
    events = list(
        client.responses.create(model="ensemble", input="Rome?", tools=[WEATHER], stream=True)
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.completed",
    ]
    last: Any = events[-1]
    message, call = last.response.output
    assert message.content[0].text == "Let me see."
    assert (call.name, call.arguments, call.status) == ("weather", '{"city": "Rome"}', "completed")
    for kind, whole, item in (
        ("response.output_text.delta", "Let me see.", message),
        ("response.function_call_arguments.delta", '{"city": "Rome"}', call),
    ):
        deltas: list[Any] = [event for event in events if event.type == kind]
        assert "".join(event.delta for event in deltas) == whole
        assert {event.item_id for event in deltas} == {item.id}
    whole_answer = client.responses.create(model="ensemble", input="Rome?", tools=[WEATHER])
    assert [item.type for item in whole_answer.output] == ["message", "function_call"]


def test_a_conversation_goes_on_from_its_items(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    gateway.triton.answer = lambda _: pieces_of(ANSWER, 1000)
    talk: list[Any] = [
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Rome?"}]},
    ]
    first = client.responses.create(model="ensemble", input=talk, tools=[WEATHER])
    message, call = first.output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    expected = (
        "Assistant: No.\n"
        "User: Rome?\n"
        "Assistant: Let me see.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        "User: <tool_response>\nsunny\n</tool_response>\n"
        "Assistant:"
    )
    reference: Any = {"type": "item_reference", "id": message.id}
    for said in (message.model_dump(exclude_none=True), reference):
        client.responses.create(
            model="ensemble",
            input=[*talk, said, call.model_dump(exclude_none=True), result],  # type: ignore[list-item]
        )
        assert prompt(gateway) == expected


def test_log_probabilities_come_with_the_text() -> None:
    """Of each delta those of its tokens, of the whole text all."""
    with running_gateway(tokenizer=TARGET) as gateway:
        asked = openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0).responses.create
        include: Any = [LOG_PROBABILITIES]
        first, second = two_pieces()
        tell(first, tokens=[scored(5, -0.5, (5, -0.5), (6, -1.0)), scored(7, -0.25, (7, -0.25))])
        tell(second, tokens=[scored(8, -2.0, (9, -0.125), (8, -2.0))])
        gateway.triton.answer = lambda _: [first, second]
        whole = asked(model="ensemble", input="hello", include=include, top_logprobs=1)
        assert number(gateway, "top_log_probs", "<i") == 1
        content: Any = whole.output[0].content[0]  # type: ignore[union-attr, index]
        assert [token.logprob for token in content.logprobs] == [-0.5, -0.25, -2.0]
        assert "".join(token.token for token in content.logprobs) == "héllo wörld"
        assert [len(token.top_logprobs) for token in content.logprobs] == [1, 1, 1]
        assert content.logprobs[2].top_logprobs[0].logprob == -0.125
        events = list(asked(model="ensemble", input="hello", include=include, stream=True))
        deltas: list[Any] = [one for one in events if one.type == "response.output_text.delta"]
        told = [[token.logprob for token in delta.logprobs] for delta in deltas]
        assert told == [[-0.5, -0.25], [-2.0]]
        done: Any = next(one for one in events if one.type == "response.output_text.done")
        assert [token.logprob for token in done.logprobs] == [-0.5, -0.25, -2.0]
    with running_gateway() as gateway:
        body = {"model": "ensemble", "input": "hello", "include": include}
        status, _, text = gateway.ask("/v1/responses", body)
        assert (status, json.loads(text)["error"]["param"]) == (400, "include")


def test_items_that_must_not_be_stored_are_not(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    (message,) = client.responses.create(model="ensemble", input="hello", store=False).output
    with pytest.raises(openai.BadRequestError, match="send the item itself") as caught:
        client.responses.create(
            model="ensemble", input=[{"type": "item_reference", "id": str(message.id)}]
        )
    assert caught.value.param == "input.0.id"


def test_references_are_refused_when_the_items_are_longer_than_a_body() -> None:
    memory = ItemMemory()
    part = {"type": "output_text", "text": "x" * 9000, "annotations": [], "logprobs": ["y"]}
    item = {"id": "m", "type": "message", "role": "assistant", "content": [part]}
    memory.keep([item])
    (known,) = memory.resolved([ItemReference(id="m")])
    assert (known.content[0].text, known.content[0].logprobs) == ("x" * 9000, [])  # type: ignore[union-attr]
    assert part["logprobs"] == ["y"]
    with pytest.raises(ApiError, match=f"more than {MOST_REFERRED_BYTES} bytes") as caught:
        memory.resolved([ItemReference(id="m")] * (MOST_REFERRED_BYTES // 9000))
    assert caught.value.param == "input"


def test_stream_when_a_failure_comes_later_has_it_as_an_event(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    begun = response(text_output="he", num_input_tokens=3, num_output_tokens=1, finish_reason="")
    gateway.triton.answer = lambda _: [begun, refusal("UNAVAILABLE: the target is away")]
    *_, last = client.responses.create(model="ensemble", input="hello", stream=True)
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "the target is away" in last.response.error.message


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input.0"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"include": [LOG_PROBABILITIES], "tools": [WEATHER]}, "include"),
        ({"include": [LOG_PROBABILITIES], "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"return_trace": True, "stream": True}, "return_trace"),
        ({"temperature": 3}, "temperature"),
        ({"bogus": 1}, "bogus"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(
    gateway: RunningGateway, client: openai.OpenAI, more: Any, param: str
) -> None:
    body = {"model": "ensemble", "input": "hello"} | more
    status, _, text = gateway.ask("/v1/responses", body)
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, param)
    assert "discriminator" not in error["message"]
    assert "tag" not in error["message"]


def test_errors_of_triton_name_the_fields_of_this_route(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    said = "max_tokens is 5000; it must be between 1 and 1024"
    gateway.triton.answer = lambda _: [refusal(f"INVALID_ARGUMENT: {said}")]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="max_output_tokens is 5000") as caught:
            client.responses.create(
                model="ensemble", input="hello", max_output_tokens=5000, stream=stream
            )
        assert caught.value.param == "max_output_tokens"
