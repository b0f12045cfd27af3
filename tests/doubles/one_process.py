"""Both loops in one process, `card`'s side played by the test: no clock, no thread, no race."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from fake_engine import FakeEngine, FakeModel

from card.cache import CardSlot, EngineState, Finish, Geometry, Pool, SlotCounters, SlotRequest
from card.constraints.compiled import GuidedTokens
from card.constraints.compiler import GuideCompiler
from card.decoding import TargetLoop
from card.drafting import DraftLoop, make_drafters
from card.engines import Engine
from card.sampling import History, SamplingParameters, sample
from card.settings import Settings

GREEDY = SamplingParameters()
_LONG_AGO_NS = -(10**15)
"""On a clock that began when the machine did, perhaps only minutes ago."""
_MOST_STEPS = 5000
"""Steps without an end after which a run is stuck."""


def settings_of(
    *, nodes: int = 128, slots: int = 4, prefill_chunk: int = 8, **speculation: Any
) -> Settings:
    """Settings for small models; a heartbeat stays fresh for longer than any test runs.

    No n-grams are proposed unless `ngram_tokens` says so. The drafter `parallel` makes blocks of
    four tokens, with one mask.
    """
    return Settings.model_validate(
        {
            "draft": {"mask_ids": [2]},
            "speculation": {"rows": 8, "ngram_tokens": 0, "block": 4, **speculation},
            "cache": {"slots": slots, "nodes": nodes},
            "serving": {"prefill_chunk": prefill_chunk, "engine_timeout_s": 600},
        }
    )


def request_of(
    prompt: Sequence[int],
    max_tokens: int,
    decoding: str = "card",
    parameters: SamplingParameters = GREEDY,
    gamma: int = 4,
) -> SlotRequest:
    return SlotRequest(np.array(prompt, np.int64), max_tokens, decoding, parameters, gamma)


def autoregressive(
    model: FakeModel, request: SlotRequest, tokens: GuidedTokens | None = None
) -> list[int]:
    """What the target alone writes: one token after the other from fresh logits.

    tokens  what the request's guide is compiled for, if it has a guide
    """
    history = History(request.prompt, len(request.prompt) + request.max_tokens)
    guided = tokens and request.guide and tokens.compile(request.guide).begin()
    while history.generated < request.max_tokens:
        row = model.row_after(history.tokens)
        allowed = guided.allowed() if guided else None
        history.append(sample(row, history, request.parameters, allowed))
        if history.tokens[-1] in request.parameters.end_ids:
            break
        if guided:
            guided.advance(history.tokens[-1])
    return history.tokens[len(request.prompt) :]


def repeating_text(model: FakeModel) -> list[int]:
    """A text [a, x, b, a] that the model continues as it went on before: x, b, but not a."""
    return next(
        [a, x, b, a]
        for a, x, b in permutations(range(model.vocabulary), 3)
        if autoregressive(model, request_of([a, x, b, a], 2)) == [x, b]
        and model.row_after([a, x, b, a, x, b]).argmax() != a
    )


@dataclass
class Stream:
    """One open session as `card` sees it."""

    slot: CardSlot
    session_id: int

    @property
    def finish(self) -> Finish:
        return self.slot.finish(self.session_id)

    @property
    def output(self) -> list[int]:
        tokens: list[int] = self.slot.output(0, self.slot.committed(self.session_id)).tolist()
        return tokens

    @property
    def counters(self) -> SlotCounters:
        return self.slot.counters()


class OneProcess:
    """A pool and both loops; use as a context."""

    def __init__(
        self,
        target: Engine,
        draft: Engine,
        settings: Settings,
        guides: GuideCompiler | None = None,
        *,
        apart: bool = True,
        draft_pass_ms: float = 0.0,
        states: tuple[int, int] = (0, 0),
    ) -> None:
        """`apart` and `draft_pass_ms` are those of `DraftLoop`; `states` are the tokens and numbers
        of hidden states in a slot."""
        self._draft_options: dict[str, Any] = {"apart": apart, "pass_ms": draft_pass_ms}
        self.target_engine = target
        self.draft_engine = draft
        self.settings = settings
        self._guides = guides
        self._home = tempfile.TemporaryDirectory()
        self._where = (
            Path(self._home.name),
            os.getpid(),
            Geometry(
                settings.cache.slots,
                settings.cache.nodes,
                1024,
                256,
                8,
                32,
                logit_bias=4,
                likeliest=3,
                guide=1024,
                state_tokens=states[0],
                state_numbers=states[1],
            ),
        )
        self.pool = Pool.create(*self._where)
        self._found: list[Pool] = []
        self.restart_target(target)
        self.restart_draft(draft)
        self.revive_draft()

    def __enter__(self) -> OneProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.unlink()
        for pool in (self.pool, *self._found):
            pool.close()
        self._home.cleanup()

    def revive_draft(self) -> None:
        if "draft" in self.settings.roles:
            self.pool.beat("draft", EngineState.ATTACHED)

    def kill_draft(self) -> None:
        """No heartbeat for longer than any timeout."""
        self.pool.header["draft_heartbeat_ns"] = _LONG_AGO_NS

    def restart_target(self, engine: Engine) -> None:
        """A fresh target process, which knows nothing but the pool."""
        self.target_engine = engine
        self.target_pool = self._found_pool()
        self.target = TargetLoop(engine, self.target_pool, self.settings, self._guides)

    def restart_draft(self, engine: Engine, small: Engine | None = None) -> None:
        """A fresh draft process, which knows nothing but the pool.

        small  runs `draft_small`; None: a model that often disagrees
        """
        self.draft_engine = engine
        if small is None:
            small = FakeEngine(FakeModel(engine.vocabulary, agreement=0.7), tree=True)
        drafters = make_drafters(engine, self.settings, small)
        self.draft = DraftLoop(drafters, self._found_pool(), self._guides, **self._draft_options)

    def _found_pool(self) -> Pool:
        """The pool as an engine process maps it."""
        pool = Pool.open(*self._where)
        if pool is None:
            raise AssertionError("an engine does not find the pool")
        self._found.append(pool)
        return pool

    def open(self, request: SlotRequest, index: int = 0) -> Stream:
        stream = Stream(self.pool.card_slot(index), self.pool.new_session_id())
        stream.slot.open(request, stream.session_id)
        return stream

    def run(
        self,
        streams: Sequence[Stream],
        draft_steps: int = 2,
        between: Callable[[], None] | None = None,
    ) -> list[list[int]]:
        """Step both loops until all streams ended; their outputs."""
        for _ in range(_MOST_STEPS):
            if all(stream.finish is not Finish.RUNNING for stream in streams):
                return [stream.output for stream in streams]
            for _ in range(draft_steps):
                self.draft.step()
            if between is not None:
                between()
            self.target.step()
        raise AssertionError(f"no end after {_MOST_STEPS} steps: {[s.output for s in streams]}")

    def close(self, streams: Sequence[Stream]) -> None:
        """End the sessions; both loops let go and the slots are free again."""
        for stream in streams:
            stream.slot.close()
        self.target.step()
        self.draft.step()
        for stream in streams:
            if not stream.slot.reclaim():
                raise AssertionError(f"slot {stream.slot.index} was not released")
