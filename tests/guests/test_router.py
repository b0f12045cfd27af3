"""SGLang's model gateway in front of two replicas: it exists, so it is tested as it is."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fleet_scene import Streams, all_at_once, question, running_fleet, told, until

from demonstration.gateway import MODEL
from fleet.conversation import ask
from fleet.running import Fleet

ENDED_S = 2.0
TOKENS = 200


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def client(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.router.url}/v1", api_key="none", max_retries=0)


def test_conversation_stays_where_its_prefix_is(fleet: Fleet) -> None:
    for number in range(4):
        messages = question(f"{number * 7919}: name the parts of a bicycle, one by one.")
        replicas = []
        for _ in range(5):
            turn = ask(fleet.router.url, messages, 48)
            assert turn.problem is None
            replicas.append(turn.replica)
            messages.append({"role": "assistant", "content": turn.text})
            messages.append({"role": "user", "content": "And what else is there to be said?"})
        assert len(set(replicas)) == 1
        assert turn.cached_tokens > turn.prompt_tokens / 2


def test_unrelated_prompts_are_shared(fleet: Fleet) -> None:
    turns = [
        ask(fleet.router.url, question(f"{number * 104729 % 99991} {'xyz'[number % 3] * 40}"), 2)
        for number in range(60)
    ]
    (_, most), (_, least) = Counter(turn.replica for turn in turns).most_common()
    assert least >= 15, f"{most} to {least}"  # a router that draws lots misses it in 1 of 10,000


def test_streams_usage_tools_and_errors_pass(fleet: Fleet) -> None:
    with client(fleet) as asked:
        tool: Any = {
            "type": "function",
            "function": {
                "name": "look",
                "parameters": {"type": "object", "properties": {"place": {"enum": ["here"]}}},
            },
        }
        answer = asked.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Look."}], tools=[tool],
            tool_choice="required", max_tokens=60, temperature=0,
        )  # fmt: skip
        told_back: dict[str, Any] = answer.to_dict()
        (call,) = told_back["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "look"
        assert told_back["usage"]["prompt_tokens"] > 0
        with pytest.raises(openai.BadRequestError, match="temperature"):
            asked.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "a"}], temperature=-1
            )
        with pytest.raises(openai.BadRequestError, match="mystery"):
            asked.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "a"}],
                extra_body={"mystery": 1},
            )  # fmt: skip


def test_fields_of_ours_reach_the_replica(fleet: Fleet) -> None:
    body = {
        "model": MODEL, "messages": question("Say it."), "max_tokens": 8, "temperature": 0.7,
        "seed": 5, "decoding": "autoregressive", "cache_salt": "mine", "min_tokens": 8,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{fleet.router.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    texts = set()
    for _ in range(2):
        with urllib.request.urlopen(request, timeout=60) as answer:
            told_back = json.load(answer)
        assert told_back["usage"]["completion_tokens"] == 8
        assert told_back["usage"]["speculation"]["drafted"] == 0, "decoding alone drafts nothing"
        texts.add(told_back["choices"][0]["message"]["content"])
    assert len(texts) == 1


def test_metrics_when_streams_run_show_load_under_the_pickers_names(fleet: Fleet) -> None:
    replica = fleet.replicas[0]
    kv = "nv_trt_llm_kv_cache_block_metrics"
    quiet = told(replica)
    assert quiet["nv_trt_llm_request_metrics", "waiting"] == 0
    assert quiet[kv, "tokens_per"] == 32
    streams = Streams(replica.url, [question(f"{n}: tell me a story.") for n in range(3)], 400)
    streams.until_begun()
    until(
        lambda: told(replica)["nv_trt_llm_request_metrics", "scheduled"] == 3,
        "three streams are scheduled",
    )
    busy = told(replica)
    assert 0 < busy[kv, "fraction"] == busy[kv, "used"] / busy[kv, "max"]
    assert all(turn.problem is None for turn in streams.ended())
    until(
        lambda: told(replica)["nv_trt_llm_request_metrics", "scheduled"] == 0, "none is scheduled"
    )
    after = told(replica)
    assert after[kv, "used"] == 0
    accepted = "vllm:spec_decode_num_accepted_tokens"
    by_place = sum(v for (name, *_), v in after.items() if name == f"{accepted}_per_pos_total")
    assert by_place == after[f"{accepted}_total",] > 0


def test_forty_conversations_outlive_a_drain_and_a_loss(tmp_path: Path) -> None:
    """One replica drains and comes back, then the other one is lost, while streams run."""
    with running_fleet(tmp_path) as fleet:
        first, second = fleet.replicas
        url = fleet.router.url
        chats = [question(f"{n * 7919}: tell a story of {n} ships.") for n in range(40)]
        expected = [turn.text for turn in all_at_once(second.url, chats, TOKENS)]

        streams = Streams(url, chats[:20], TOKENS)
        streams.until_begun()
        first.stop()
        assert [turn.text for turn in streams.ended()] == expected[:20]
        first.wait(120)
        first.start()
        until(lambda: first.url in fleet.router.healthy(), "the replica takes part again")

        streams = Streams(url, chats[20:], TOKENS)
        streams.until_begun()
        lost_s = second.kill()
        late = all_at_once(url, chats[:4], TOKENS)
        turns = streams.ended()
        for turn, text in zip(turns, expected[20:], strict=True):
            if turn.replica == second.url and turn.problem is not None:
                assert text.startswith(turn.text)
                assert turn.ended_s - lost_s < ENDED_S
            else:
                assert turn.problem is None
                assert turn.text == text
        assert [turn.text for turn in late] == expected[:4]
        until(lambda: fleet.router.healthy() == [first.url], "the lost replica is left")


def test_refusal_of_a_replica_is_passed_on(fleet: Fleet) -> None:
    """An error of a replica keeps its status and its shape."""
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 10**9}).encode()
    request = urllib.request.Request(
        f"{fleet.router.url}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=60)
    assert error.value.code == http.client.BAD_REQUEST
    assert json.load(error.value)["error"]["param"] == "max_tokens"
