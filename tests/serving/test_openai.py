"""OpenAI's own client against the gateway and the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from real_pair import TARGET
from running_doors import MODEL, RunningGateway, running_gateway
from running_service import RunningService
from tokenizers import Tokenizer

PROMPT = "def fibonacci(n):"
TALK: Any = [
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "Add two numbers."},
]


@pytest.fixture(scope="module")
def gateway(server: RunningService) -> Iterator[RunningGateway]:
    with running_gateway(server) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> openai.OpenAI:
    return gateway.client()


async def test_a_greedy_completion_is_the_servers_text(
    server: RunningService, client: openai.OpenAI
) -> None:
    wanted = await server.text(PROMPT, max_tokens=48)
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=48, temperature=0)
    stream = client.completions.create(
        model=MODEL, prompt=[PROMPT], max_tokens=48, temperature=0, stream=True
    )
    pieces = [chunk.choices[0] for chunk in stream]
    assert whole.choices[0].text == "".join(piece.text for piece in pieces) == wanted
    assert whole.choices[0].finish_reason == pieces[-1].finish_reason == "length"
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert len(pieces) > 1
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 48
    assert whole.usage.prompt_tokens > 0


def spelt(tokenizer: Tokenizer) -> list[str]:
    """Every token's text behind another one."""
    before = tokenizer.encode("a", add_special_tokens=False).ids
    return [tokenizer.decode([*before, n])[1:] for n in range(tokenizer.get_vocab_size())]


def test_an_echo_tells_what_the_text_was_worth_when_it_was_written(client: openai.OpenAI) -> None:
    """Harnesses that compare likelihoods ask this: of tokens, with one token more or none."""
    written = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, logprobs=5
    )
    scores: Any = written.choices[0].logprobs
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    prompt = tokenizer.encode(PROMPT).ids
    by_text = {text: token for token, text in enumerate(spelt(tokenizer))}
    output = [by_text[max(top, key=top.get)] for top in scores.top_logprobs]
    for limit in (0, 1):
        echo = client.completions.create(
            model=MODEL, prompt=[prompt + output, prompt], max_tokens=limit, temperature=0,
            logprobs=2, echo=True,
        )  # fmt: skip
        told: Any = echo.choices[0].logprobs
        behind = slice(len(prompt), len(prompt) + len(output))
        assert told.token_logprobs[0] is None
        assert told.token_logprobs[behind] == scores.token_logprobs
        assert [max(top.values()) for top in told.top_logprobs[behind]] == scores.token_logprobs
        assert len(told.tokens) == len(prompt) + len(output) + limit
        assert echo.choices[0].text.startswith(PROMPT + written.choices[0].text)
        assert echo.choices[1].text.startswith(PROMPT)
        assert echo.usage is not None
        assert echo.usage.completion_tokens == 2 * limit


@pytest.mark.parametrize(("least", "written"), [(0, 0), (5, 5)])
def test_a_stop_text_that_is_a_special_token_ends_the_text(
    client: openai.OpenAI, least: int, written: int
) -> None:
    """Though it is no text, and not before `min_tokens`; a bias makes it the likeliest token."""
    end = Tokenizer.from_file(str(TARGET / "tokenizer.json")).token_to_id("<|endoftext|>")
    extra = {"ignore_eos": True, "min_tokens": least}
    asked: dict[str, Any] = REQUEST | {"max_tokens": 12, "temperature": 0}
    asked |= {"logit_bias": {str(end): 50}, "extra_body": extra}
    choice = client.completions.create(**asked | {"stop": ["<|endoftext|>"]})
    assert choice.choices[0].finish_reason == "stop"
    assert choice.usage is not None
    assert choice.usage.completion_tokens == written
    assert client.completions.create(**asked).choices[0].finish_reason == "length"


PARAMETERS: list[dict[str, Any]] = [
    {"n": 2, "seed": 3, "stream": True},
    {"best_of": 2, "seed": 3, "logprobs": 1},
    {"seed": 4, "logit_bias": {"306": 3.5, "79": -5}, "extra_body": {"min_p": 0.05, "top_k": -1}},
    {"seed": 5, "extra_body": {"bad_words": ["self"], "stop_token_ids": [382]}},
    {"seed": -5, "top_p": 0.5, "presence_penalty": 0.1, "frequency_penalty": 0.1,
     "stop": ["aa", "bb", "cc", "dd"],
     "extra_body": {"ignore_eos": True, "min_tokens": 4, "top_k": 3, "repetition_penalty": 1.1}},
]  # fmt: skip


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_speculation_changes_no_token_of_what_is_asked_for(
    client: openai.OpenAI, parameters: dict[str, Any]
) -> None:
    def ask(decoding: str) -> dict[int, str]:
        extra = {"decoding": decoding, **parameters.get("extra_body", {})}
        create: Any = client.completions.create
        answer = create(
            **{"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0.8}
            | parameters
            | {"extra_body": extra}
        )
        texts: dict[int, str] = {}
        for chunk in answer if parameters.get("stream") else [answer]:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        return texts

    found = ask("card")
    assert found == ask("autoregressive")
    assert len(set(found.values())) == len(found) == parameters.get("n", 1)


REQUEST: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6}


CALLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "set_light",
            "parameters": {
                "type": "object",
                "properties": {
                    "room": {"enum": ["kitchen", "bath"]},
                    "level": {"type": "integer", "minimum": 0, "maximum": 9},
                },
                "required": ["room", "level"],
            },
        },
    }
]


def test_a_required_call_is_one_of_the_tools_with_fitting_arguments(client: openai.OpenAI) -> None:
    written = set()
    for decoding in ("card", "autoregressive"):
        asked: Any = {
            "model": MODEL,
            "temperature": 0.9,
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "extra_body": {"decoding": decoding, "seed": 7},
        }
        whole = client.chat.completions.create(messages=TALK, tools=CALLS, **asked).choices[0]
        assert whole.finish_reason == "tool_calls"
        (call,) = whole.message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "set_light"
        with client.chat.completions.stream(messages=TALK, tools=CALLS, **asked) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
        tools: Any = [{"type": "function", **CALLS[0]["function"]}]
        (item,) = client.responses.create(input=TALK, tools=tools, **asked).output
        assert item.type == "function_call"
        written |= {call.function.arguments, streamed.function.arguments, item.arguments}
    (arguments,) = map(json.loads, written)
    assert list(arguments) == ["room", "level"]
    assert arguments["room"] in ("kitchen", "bath")
    assert arguments["level"] in range(10)
