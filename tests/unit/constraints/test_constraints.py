"""A guided text is what its guide describes; guides are compiled, refused and forgotten."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel
from guides import fits
from one_process import GREEDY, OneProcess, autoregressive, request_of, settings_of

from card.cache import Finish, SlotRequest
from card.constraints import Guide, GuideError
from card.constraints.compiled import GuidedTokens
from card.constraints.compiler import GuideCompiler
from card.constraints.grammar import grammar_of
from card.constraints.references import endless_reference
from card.sampling import SamplingParameters
from card.serving.requests.guide_check import GuideCheck
from card.serving.requests.refusal import Refusal
from card.serving.requests.vocabulary import Vocabulary

PAIR = Path(__file__).parents[2] / "pair" / "target"
TOKENS = GuidedTokens.load(PAIR)
VOCABULARY = Vocabulary.load(PAIR)
_LONG_S = 60.0
"""For which a loop waits for its masks, so that no test hangs on the machine's speed."""
TARGET = FakeModel(TOKENS.vocabulary)
ENDS = VOCABULARY.end_ids

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def _is_of_schema(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["name", "age", "tags"] and {*value["tags"]} <= {"red", "green"}


GUIDES: list[tuple[Guide, Callable[[str], Any]]] = [
    (Guide("json_schema", json.dumps(SCHEMA)), _is_of_schema),
    (Guide("regex", "[a-f]{3}-[0-9]{2}( [a-f]{1,4}){2}"),
     re.compile("[a-f]{3}-[0-9]{2}( [a-f]{1,4}){2}").fullmatch),
    (Guide("json_schema", json.dumps(SCHEMA | {"x-guidance": {"whitespace_flexible": False}})),
     lambda text: _is_of_schema(text) and "\n" not in text and '": ' not in text),
    (Guide("ebnf_grammar", 'root ::= ("up" | "down") " " [0-9]'),
     re.compile("(up|down) [0-9]").fullmatch),
    (Guide("ebnf_grammar", 'start: "go " ("left" | "right")'), re.compile("go (left|right)").match),
    (Guide("choice", '["yes", "no", "n\u00f6"]'), ["yes", "no", "n\u00f6"].__contains__),
]  # fmt: skip
PARAMETERS = [
    replace(GREEDY, end_ids=ENDS),
    SamplingParameters(temperature=0.9, seed=3, end_ids=ENDS),
    SamplingParameters(
        temperature=0.7,
        seed=4,
        top_k=40,
        top_p=0.9,
        repetition_penalty=1.3,
        min_tokens=200,
        bad_words=((7,), (8, 9)),
        end_ids=ENDS,
    ),
]


def guided(guide: Guide, parameters: SamplingParameters, decoding: str = "card") -> SlotRequest:
    return replace(request_of([1, 2, 3], 200, decoding, parameters), guide=guide)


def alone(request: SlotRequest) -> list[int]:
    return autoregressive(TARGET, request, TOKENS)


def both_models(agreement: float, **speculation: Any) -> OneProcess:
    return OneProcess(
        FakeEngine(TARGET, tree=False),
        FakeEngine(FakeModel(TOKENS.vocabulary, agreement=agreement), tree=True),
        settings_of(**speculation),
        GuideCompiler(lambda: TOKENS, _LONG_S),
    )


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize(("guide", "suits"), GUIDES)
def test_text_when_guided_is_what_its_guide_describes(
    guide: Guide, suits: Callable[[str], Any], parameters: SamplingParameters
) -> None:
    text = alone(guided(guide, parameters))
    assert text[-1] in ENDS
    assert suits(VOCABULARY.tokenizer.decode(text, skip_special_tokens=True))


def test_the_draft_proposes_what_the_guide_allows() -> None:
    """Its logits are the target's, so it is nearly always right where it heeds the guide."""
    with both_models(1.0) as both:
        for parameters in PARAMETERS[:2]:
            stream = both.open(guided(GUIDES[0][0], parameters))
            both.run([stream], draft_steps=8)
            counters = stream.counters
            assert counters.drafted > 10
            assert counters.accepted > 0.7 * counters.drafted
            both.close([stream])


@pytest.mark.parametrize("query", ["chain", "subtree"])
def test_what_a_guide_leaves_no_choice_about_takes_no_pass_a_token(query: str) -> None:
    """Letters of which the tokenizer has no pairs, so each is a token."""
    guide = Guide("choice", json.dumps([f"{first}-zqxjzqxjvkzqxj" for first in "01"]))
    with both_models(0.0, query=query) as both:
        stream = both.open(guided(guide, PARAMETERS[1]))
        passes = 0
        while stream.finish is Finish.RUNNING:  # the draft never runs
            passes += both.target.step()  # none while the guide is compiled
        [text] = both.run([stream])
        assert text == alone(guided(guide, PARAMETERS[1]))
        assert len(text) == 17
        assert passes <= 5


def test_a_guide_with_a_dead_end_fails_its_session_alone() -> None:
    dead_end = Guide("ebnf_grammar", 'start: "abcdefgh" /[^\\s\\S]/')
    with both_models(0.8) as both:
        streams = [
            both.open(guided(guide, PARAMETERS[0]), index)
            for index, guide in enumerate((dead_end, GUIDES[1][0]))
        ]
        both.run(streams)
        assert [s.finish for s in streams] == [Finish.GUIDE_FAILED, Finish.END_ID]


NUMBER = {"type": "integer"}
BOTH = {"allOf": [{"properties": {"b": NUMBER}}, {"properties": {"c": NUMBER}}]}


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize(
    ("schema", "of_it", "others"),
    [
        ({"properties": {"properties": {"properties": {"a": NUMBER}}}},
         ['{"properties": {"a": 1}}'], ['{"properties": {"b": 1}}', '{"b": 1}']),
        ({"anyOf": [{"items": {"properties": {"a": NUMBER}}, "type": "array"},
                    {"$ref": "#/$defs/x"}],
          "$defs": {"x": {"properties": {"b": NUMBER}, "type": "object"}}},
         ['[{"a": 1}]', '{"b": 1}'], ['[{"b": 1}]', '{"a": 1}']),
        ({"properties": {}, "additionalProperties": NUMBER}, ['{"a": 1}'], ['{"a": "1"}']),
        ({"properties": {"a": NUMBER}, "required": ["b"]}, ['{"b": 1}'], ['{"a": 1}']),
        ({"properties": {"a": NUMBER}, "anyOf": [{"required": ["a"]}]}, ['{"a": 1, "b": 1}'], []),
        ({"properties": {"a": {"allOf": [{"properties": {"b": NUMBER}}]}}},
         ['{"a": {"b": 1}}'], ['{"a": {"c": 1}}']),
        ({"properties": {"a": BOTH}}, ['{"a": {"b": 1, "c": 1, "d": 1}}'], ['{"b": 1}']),
        ({"properties": {"a": BOTH, "b": {"$ref": "#/properties/a/allOf/0"}}}, ['{"c": 1}'], []),
        ({"oneOf": [{"const": {"format": "a"}}, {"type": "string", "format": "password"}]},
         ['"ü"', '{"format": "a"}'], ["5"]),
        ({"type": "array", "x-guidance": {"whitespace_flexible": False}}, ["[]"], ["[ ]"]),
    ],
)  # fmt: skip
def test_a_schema_means_the_same_alone_and_in_a_grammar(
    schema: dict[str, Any], of_it: list[str], others: list[str], embedded: bool
) -> None:
    """An object has the properties that it names and no others, unless it says more."""
    kind, guide = "json_schema", json.dumps(schema)
    if embedded:
        guide = f'start: a "%json []" // %json\na: %json {json.dumps(schema, indent=1)} | /%json 1/'
        kind, of_it = "ebnf_grammar", [f"{text}%json []" for text in (*of_it, "%json 1")]
        others = [f"{text}%json []" for text in others]
    assert [fits(guide, text, kind) for text in of_it] == [True] * len(of_it)
    assert [fits(guide, text, kind) for text in others] == [False] * len(others)


LOOP = {"$defs": {"T": {"$ref": "#/$defs/U"}, "U": {"allOf": [{"$ref": "#/$defs/T"}]}}}


@pytest.mark.parametrize(
    ("schema", "is_endless"),
    [
        ({"properties": {"t": {"$ref": "#/$defs/T"}}, "required": ["t"], **LOOP}, True),
        ({"$ref": "#"}, True),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}]}, True),
        ({"properties": {"t": {"anyOf": [{"$ref": "#/properties/t"}, {"type": "null"}]}}}, False),
        ({"properties": {"t": {"$ref": "#"}}}, False),
        ({"type": "object", "properties": {"t": {"$ref": "#"}}, "required": ["t"]}, True),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, True),
        ({"type": "array", "items": {"$ref": "#"}}, False),
        ({"type": "array", "prefixItems": [{}], "items": {"$ref": "#"}, "minItems": 1}, False),
        (
            {"type": ["object", "null"], "properties": {"t": {"$ref": "#"}}, "required": ["t"]},
            False,
        ),
        ({"const": {"$ref": "#/const"}}, False),
        ({"$ref": "#/$defs/none"}, False),
    ],
)
def test_reference_that_leads_back_to_itself_is_refused_with_its_place(
    schema: dict[str, Any], is_endless: bool
) -> None:
    embedded = f'start: "a"\na: %json {json.dumps(schema)}'
    for guide, place in (
        (Guide("json_schema", json.dumps(schema)), "at #"),
        (Guide("ebnf_grammar", embedded), "line 2 column 1: at #"),
    ):
        refused = pytest.raises(GuideError, match="leads back") if is_endless else nullcontext()
        with refused as error:
            grammar_of(guide)
        assert error is None or str(error.value).startswith(place)


def test_search_for_references_copies_no_names_when_they_are_long() -> None:
    """In a schema of 30 kB; once the name of 10 kB for each of 10,000 values: 100 MB."""
    schema = {"properties": {"a" * 10_000: [0] * 10_000}}
    tracemalloc.start()
    try:
        assert endless_reference(schema) is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 << 20


@pytest.mark.parametrize("before", ["", '"a" '])
def test_guide_is_refused_when_it_names_a_token_that_ends_a_text(before: str) -> None:
    end = VOCABULARY.tokenizer.id_to_token(ENDS[0])
    guide = TOKENS.compile(Guide("ebnf_grammar", f"start: {before}{end}"))
    with pytest.raises(GuideError, match="no text can go on"):
        guide.rehearse()


def test_white_space_comes_to_an_end() -> None:
    text = TOKENS.compile(GUIDES[0][0]).begin()
    [brace], [space] = (VOCABULARY.tokenizer.encode(t).ids for t in ("{", " "))
    text.advance(brace)
    allowed = [bool(text.allowed_behind([space] * count)[space]) for count in range(64)]
    assert allowed[0]
    assert not allowed[-1]


@pytest.fixture
async def check() -> AsyncIterator[GuideCheck]:
    check = GuideCheck(PAIR, 1.0)
    yield check
    await check.close()


async def test_what_cannot_be_compiled_is_refused_and_says_where(check: GuideCheck) -> None:
    wrong = {
        Guide("json_schema", '{"type": "object"'): "line 1 column 18",
        Guide("json_schema", '{"properties": {"a": {"items": {"type": "strin"}}}}'):
            "#/properties/a/items: ",
        Guide("json_schema", '{"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{}, {"not": {}}]}}}'):
            "#/$defs/A/anyOf/1: ",
        Guide("json_schema", '{"properties": {"a": 5}}'): "#/properties/a: ",
        Guide("regex", "ab("): "character 3",
        Guide("ebnf_grammar", "root ::= [0-9]+ word"): "word",
        Guide("ebnf_grammar", 'start: "a"\nb: ("c"'): "line 2 column ",
        Guide("ebnf_grammar", 'start: "a"\nb: %json {\n}\nc: ("c"'): "line 4 column ",
        Guide("ebnf_grammar", 'start: start "a"'): "no text",
        Guide("choice", '["a", 5]'): "choice 1",
    }  # fmt: skip
    for guide, where in wrong.items():
        with pytest.raises(Refusal, match="INVALID_ARGUMENT: guided_decoding_guide ") as refused:
            await check.check(guide)
        assert where in str(refused.value)
    await check.check(GUIDES[0][0])


async def test_a_guide_that_takes_too_long_or_breaks_its_process_is_refused(
    check: GuideCheck,
) -> None:
    await check.check(GUIDES[1][0])
    chain = "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(3000))
    properties = {f"k{i}": {"type": "string"} for i in range(4000)}
    hostile = [
        Guide("ebnf_grammar", f'start: r0\n{chain}r3000: "a"'),
        Guide("json_schema", json.dumps({"type": "object", "properties": properties})),
        Guide("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
        Guide("ebnf_grammar", "root ::= " + "(" * 20000 + '"a"' + ")" * 20000),
    ]
    for guide in hostile:
        with pytest.raises(Refusal, match="INVALID_ARGUMENT"):
            await asyncio.wait_for(check.check(guide), 20)
    await check.check(GUIDES[2][0])


async def test_refusal_names_the_limit_when_its_time_ended_the_check() -> None:
    lexemes = [f"T{i}: /[a-z ]*{chr(97 + i % 26)}[a-z ]{{{i % 40}}}/" for i in range(300)]
    slow = "\n".join([f"start: ({' | '.join(f'T{i}' for i in range(300))})*", *lexemes])
    check = GuideCheck(PAIR, 0.02)
    with pytest.raises(Refusal, match=r"longer than 0.02 s \(limits.guide_compile_s\)"):
        await check.check(Guide("ebnf_grammar", slow))
    await check.close()
