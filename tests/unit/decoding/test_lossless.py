"""Lossless: the text is the target's, whatever the cache holds and whoever runs when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fake_engine import FakeEngine, FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st
from one_process import GREEDY, OneProcess, Stream, autoregressive, request_of, settings_of

from card.cache import ANY, NO_SALT, ROOT, SALT_BYTES, Finish
from card.sampling import SamplingParameters
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import SHAPES, WITHOUT_DRAFT

ON_AN_ENGINE = [name for name, drafter in DRAFTERS.items() if drafter.model != "tensorrt_llm"]
VOCABULARY = 24
TARGET = FakeModel(VOCABULARY)
PARAMETERS = [
    GREEDY,
    SamplingParameters(temperature=0.8, seed=11),
    SamplingParameters(temperature=1.3, seed=12, top_k=7, top_p=0.9),
    SamplingParameters(
        repetition_penalty=1.4,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        end_ids=(5,),
        min_tokens=9,
    ),
    SamplingParameters(
        temperature=0.8,
        seed=13,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        min_tokens=4,
        bad_words=((3,), (1, 2), (7, 7, 7)),
        end_ids=(9, 4),
    ),
    SamplingParameters(logit_bias=((2, 1.5), (6, -2.0))),
    SamplingParameters(temperature=1.1, seed=14, min_p=0.1, top_p=0.9, logit_bias=((8, 1.0),)),
]


class Liar:
    """Writes whatever it likes where the draft alone may write."""

    def __init__(self, both: OneProcess, streams: list[Stream], seed: int) -> None:
        self._both = both
        self._streams = streams
        self._random = np.random.default_rng(seed)
        self._texts = {
            stream.session_id: (request := stream.slot.request()).prompt.tolist()
            + autoregressive(TARGET, request)
            for stream in streams
        }

    def lie(self) -> None:
        stream = self._streams[self._random.integers(len(self._streams))]
        lies = [self._garbage, self._stale, self._tempting, self._duplicated, self._scribble]
        lies[self._random.integers(len(lies))](stream)

    def _nodes(self, count: int) -> tuple[list[int], list[int], list[float]]:
        draw = self._random
        return (
            draw.integers(0, VOCABULARY, count).tolist(),
            [int(draw.integers(ROOT, i)) for i in range(count)],
            (-draw.exponential(1.0, count)).tolist(),
        )

    def _publish(
        self,
        stream: Stream,
        root: int,
        nodes: tuple[list[int], list[int], list[float]],
        session_id: int | None = None,
    ) -> None:
        token, parent, score = nodes
        self._both.pool.draft_slot(stream.slot.index).replace(
            stream.session_id if session_id is None else session_id,
            root,
            np.array(token, np.int64),
            np.array(parent, np.int64),
            np.array(score, np.float64),
        )

    def _length(self, stream: Stream) -> int:
        return int(self._both.pool.slots["prompt_length"][stream.slot.index]) + len(stream.output)

    def _garbage(self, stream: Stream) -> None:
        """A sound tree of random tokens."""
        self._publish(stream, self._length(stream), self._nodes(int(self._random.integers(0, 60))))

    def _stale(self, stream: Stream) -> None:
        """The right text at a wrong root, or for another session."""
        text = self._texts[stream.session_id]
        root = int(self._random.integers(-2, len(text) + 3))
        tokens = text[self._length(stream) :]
        nodes = (tokens, list(range(ROOT, len(tokens) - 1)), [0.0] * len(tokens))
        other = stream.session_id - int(self._random.integers(0, 2))
        self._publish(stream, root, nodes, other)

    def _tempting(self, stream: Stream) -> None:
        """The right text with one wrong token somewhere, and right tokens again behind it."""
        at = self._length(stream)
        tokens = self._texts[stream.session_id][at:]
        if tokens:
            wrong = int(self._random.integers(len(tokens)))
            tokens[wrong] = (tokens[wrong] + 1) % VOCABULARY
        parents = list(range(ROOT, len(tokens) - 1))
        self._publish(stream, at, (tokens, parents, [-0.1] * len(tokens)))

    def _duplicated(self, stream: Stream) -> None:
        """The right tokens as siblings of themselves, a different mess below each."""
        at = self._length(stream)
        right = [*self._texts[stream.session_id][at : at + 3], 0]
        count = 30
        token = [right[int(n)] for n in self._random.integers(0, len(right), count)]
        parent = [int(self._random.integers(ROOT, min(i, 4))) for i in range(count)]
        self._publish(stream, at, (token, parent, [-0.01 * i for i in range(count)]))

    def _scribble(self, stream: Stream) -> None:
        """Bytes that are no tree at all, or only just."""
        record = self._both.pool.slots[stream.slot.index]
        draw = self._random
        half = int(draw.integers(0, 2))
        name = ("node_token", "node_parent", "node_score")[draw.integers(3)]
        places = draw.integers(0, 20, 6)
        record[name][half][places] = draw.integers(-3, VOCABULARY + 3, 6)
        if draw.random() < 0.3:
            record["node_count"][half] = draw.integers(-5, 300)
        if draw.random() < 0.3:
            record["node_score"][half][places] = draw.choice([np.nan, np.inf, -np.inf, 0.0])
        if draw.random() < 0.2:
            record["passes"][half] = draw.integers(-5, 1 << 40)
        if draw.random() < 0.2:
            record["flip"] += 1


@dataclass(frozen=True)
class Session:
    prompt: list[int]
    max_tokens: int
    decoding: str
    parameters: SamplingParameters
    gamma: int
    growth: str = ANY
    salt: bytes = NO_SALT
    drafter: str = ANY
    proposes: bool = True


sessions = st.builds(
    Session,
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
    max_tokens=st.integers(1, 24),
    decoding=st.sampled_from(list(PACINGS)),
    parameters=st.sampled_from(PARAMETERS),
    gamma=st.integers(1, 7),
    growth=st.sampled_from([ANY, *GROWTHS]),
    salt=st.sampled_from([NO_SALT, b"a" * SALT_BYTES, b"b" * SALT_BYTES]),
    drafter=st.sampled_from([ANY, *WITHOUT_DRAFT]),
    proposes=st.booleans(),
)
speculations = st.fixed_dictionaries(
    {
        "drafter": st.sampled_from([*ON_AN_ENGINE, *WITHOUT_DRAFT]),
        "proposals": st.sampled_from(WITHOUT_DRAFT),
        "shared_ngrams": st.booleans(),
        "growth": st.sampled_from(list(GROWTHS)),
        "siblings": st.lists(st.integers(1, 5), min_size=1, max_size=5),
        "fan_out": st.integers(1, 4),
        "doubt": st.sampled_from([0.0, 0.3, 0.9]),
        "shared_tokens": st.integers(1, 2),
        "query": st.sampled_from(list(SHAPES)),
        "width": st.integers(1, 6),
        "depth": st.integers(1, 12),
        "rows": st.one_of(st.integers(1, 12), st.just("auto")),
        "branches": st.integers(1, 4),
        "ngram_tokens": st.sampled_from([0, 1, 4]),
        "parcel": st.integers(1, 5),
    }
)


def opened(both: OneProcess, wanted: list[Session]) -> tuple[list[Stream], list[list[int]]]:
    """The sessions' streams, and what the target alone would write to each."""
    streams, texts = [], []
    for index, s in enumerate(wanted):
        request = request_of(s.prompt, s.max_tokens, s.decoding, s.parameters, s.gamma)
        request = replace(
            request, growth=s.growth, salt=s.salt, drafter=s.drafter, proposes=s.proposes
        )
        streams.append(both.open(request, index))
        texts.append(autoregressive(TARGET, request))
    return streams, texts


def fakes(agreement: float) -> tuple[FakeEngine, FakeEngine]:
    draft = FakeModel(VOCABULARY, agreement=agreement)
    return FakeEngine(TARGET, tree=False), FakeEngine(draft, tree=True)


def assert_own(stream: Stream, text: list[int]) -> None:
    """The stream is a beginning of the text, and the whole of it once it has ended."""
    output, finish = stream.output, stream.finish
    assert output == text[: len(output)]
    if finish is not Finish.RUNNING:
        assert output == text


@settings(max_examples=70)
@given(
    st.lists(sessions, min_size=1, max_size=4),
    speculations,
    st.sampled_from([0.0, 0.6, 0.9, 1.0]),
    st.lists(st.sampled_from("ddtt"), max_size=40),
    st.integers(0, 4),
)
def test_any_schedule_of_draft_and_target_gives_the_text_of_the_target_alone(
    wanted: list[Session],
    speculation: dict[str, Any],
    agreement: float,
    schedule: list[str],
    draft_steps: int,
) -> None:
    with OneProcess(*fakes(agreement), settings_of(nodes=64, **speculation)) as both:
        streams, texts = opened(both, wanted)
        for who in schedule:
            both.draft.step() if who == "d" else both.target.step()
            for stream, text in zip(streams, texts, strict=True):
                assert_own(stream, text)
        if not draft_steps:
            both.kill_draft()
        assert both.run(streams, draft_steps) == texts
        both.close(streams)


@settings(max_examples=70)
@given(
    st.lists(sessions, min_size=1, max_size=3),
    speculations,
    st.integers(0, 1 << 32),
    st.integers(0, 3),
)
def test_no_cache_however_hostile_changes_a_token(
    wanted: list[Session], speculation: dict[str, Any], seed: int, honest_steps: int
) -> None:
    """A draft that was honest for a while lies from then on, in every slot it can reach."""
    with OneProcess(*fakes(0.9), settings_of(nodes=64, **speculation)) as both:
        streams, texts = opened(both, wanted)
        for _ in range(honest_steps):
            both.draft.step()
            both.target.step()
        liar = Liar(both, streams, seed)
        for step in range(200):
            if step == 40:
                both.kill_draft()  # or draft-then-verify would wait for passes it never makes
            liar.lie()
            both.target.step()
            for stream, text in zip(streams, texts, strict=True):
                assert_own(stream, text)
            if all(stream.finish is not Finish.RUNNING for stream in streams):
                break
        assert [stream.output for stream in streams] == texts


@settings(max_examples=40)
@given(
    st.lists(sessions, min_size=1, max_size=3),
    speculations,
    st.lists(st.sampled_from(["draft", "target", "both"]), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_engines_that_die_and_come_back_leave_the_text_as_it_is(
    wanted: list[Session], speculation: dict[str, Any], deaths: list[str], lifetime: int
) -> None:
    with OneProcess(*fakes(0.9), settings_of(nodes=64, **speculation)) as both:
        streams, texts = opened(both, wanted)
        for who in deaths:
            for _ in range(lifetime):
                both.draft.step()
                both.target.step()
            target, draft = fakes(0.9)
            if who != "target":
                both.restart_draft(draft)
            if who != "draft":
                both.restart_target(target)
        assert both.run(streams) == texts
