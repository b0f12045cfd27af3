"""The hook's work before a target pass: it queries the cache. The Triton process commits.

This module does not import the runtime: a request is anything like `EngineRequest`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from card.cache import Geometry, Pool, SlotRequest
from card.decoding.guest import follow
from card.decoding.session import TargetSession
from card.speculation.control import Share
from card.speculation.sources import make_sources
from card.tensorrt_llm.bindings import Bindings

_DUMMIES = ("is_dummy", "is_attention_dp_dummy", "is_cuda_graph_dummy")


class EngineRequest(Protocol):
    """The part of the runtime's `LlmRequest` that the hook reads."""

    py_client_id: int | None

    def get_tokens(self, beam: int) -> Sequence[int]:
        """Prompt and output so far: all that is committed."""


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Plain values, so that they can be pickled into the engine's worker.

    directory   shared-memory mount of the pool
    owner_pid   the Triton process that makes the requests
    server_pid  the Triton server of the pool
    vocabulary  ids that a token may have
    candidates  most tokens per request and pass
    budget_s    time limit of the hook, which adds to every target pass; a request without an answer
                by then gets no candidates, and comes first in the next pass
    """

    directory: Path
    owner_pid: int
    server_pid: int
    geometry: Geometry
    vocabulary: int
    candidates: int
    budget_s: float = 0.005


@dataclass(slots=True)
class _Asked:
    """A session as the engine's worker has it, and how many passes asked for candidates."""

    session: TargetSession
    passes: int = 0


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class CandidateLookup:
    """Attaches to the pool when first asked, and again whenever the pool is another."""

    def __init__(
        self, settings: LookupSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._pool: Pool | None = None
        self._bindings: Bindings | None = None
        self._sessions: dict[int, _Asked] = {}
        self._sources = make_sources("chain", 1, "ngram")
        self._share = Share(drafts=True, num_rows=settings.candidates + 1, ngram_tokens=0)
        self._first = 0

    def answer(self, requests: Sequence[EngineRequest]) -> list[list[int]]:
        """Candidates for every request, in order: a fresh list of at most `candidates` ids each."""
        bindings = self._attached()
        if bindings is None:
            return [[] for _ in requests]
        bound = bindings.requests()
        sessions = [self._session(request, bound) for request in requests]
        answers = [
            self._unasked(request, session)
            for request, session in zip(requests, sessions, strict=True)
        ]
        deadline = self._clock() + self._settings.budget_s
        count = len(requests)
        for turn in range(count):
            index = (self._first + turn) % count
            if self._clock() > deadline:
                self._first = index
                break
            if (session := sessions[index]) is not None:
                answers[index] = self._candidates(requests[index], session, bindings)
        return answers

    # --- attach -------------------------------------------------------------------------------

    def _attached(self) -> Bindings | None:
        """The table of our Triton process; None while there is none, and once that has ended:
        then another process decodes its sessions."""
        if self._bindings is not None and not self._bindings.is_current:
            self._detach()
        if not _runs(self._settings.owner_pid):
            return None
        if self._bindings is None:
            self._attach()
        return self._bindings

    def _attach(self) -> None:
        settings = self._settings
        pool = Pool.open(settings.directory, settings.server_pid, settings.geometry)
        if pool is None:
            return
        bindings = Bindings.open(pool)
        if bindings is None or bindings.owner != settings.owner_pid:  # it is not attached yet
            if bindings is not None:
                bindings.close()
            pool.close()
            return
        self._pool, self._bindings = pool, bindings

    def _detach(self) -> None:
        self._sessions.clear()
        if self._bindings is not None and self._pool is not None:
            self._bindings.close()
            self._pool.close()
        self._bindings = self._pool = None

    # --- one request --------------------------------------------------------------------------

    def _session(self, request: EngineRequest, bound: dict[int, tuple[int, int]]) -> _Asked | None:
        """The open session that the request decodes; None if it is unknown, dummy or closed."""
        client_id = getattr(request, "py_client_id", None)
        if client_id is None or any(getattr(request, name, False) for name in _DUMMIES):
            return None
        slot_index, session_id = bound.get(client_id, (-1, 0))
        if slot_index < 0 or self._pool is None:
            return None
        asked = self._sessions.get(slot_index)
        if asked is None or asked.session.session_id != session_id:
            slot = self._pool.target_slot(slot_index)
            opened = slot.opened()
            if opened is None:
                return None
            asked = _Asked(follow(slot, *opened, self._settings.vocabulary))
            self._sessions[slot_index] = asked
        session = asked.session
        is_its_own = session.session_id == session_id and session.slot.is_open(session_id)
        return asked if is_its_own else None

    def _unasked(self, request: EngineRequest, asked: _Asked | None) -> list[int]:
        """The answer to a request beyond the time limit: no candidates. A request without
        speculation gets ids that cannot be accepted, because the runtime would fill the list up."""
        if asked is None or asked.session.queries:
            return []
        wanted = asked.session.request
        room = len(wanted.prompt) + wanted.max_tokens - 1 - len(request.get_tokens(0))
        return _unacceptable(wanted, min(self._settings.candidates, room))

    def _candidates(self, request: EngineRequest, asked: _Asked, bindings: Bindings) -> list[int]:
        session, tokens = asked.session, list(request.get_tokens(0))
        if not _is_text_of(session, tokens):
            return []
        for token in tokens[len(session.history) :]:
            session.history.append(token)
        chain = session.query(self._sources, self._share).candidates
        offered = list(chain.tokens)
        bindings.offer(session.slot.index, session.session_id, asked.passes, len(tokens), offered)
        asked.passes += 1
        return offered if session.queries else self._unasked(request, asked)


def _is_text_of(session: TargetSession, tokens: list[int]) -> bool:
    """Whether the tokens of a request are the session's text: they go on behind those of the pass
    before, and there is room for more."""
    known, request = len(session.history), session.request
    most = len(request.prompt) + request.max_tokens
    return known <= len(tokens) < most and tokens[known - 1] == session.history.tokens[-1]


def _unacceptable(request: SlotRequest, count: int) -> list[int]:
    """Candidates for a request that is to be decoded without any.

    The runtime verifies the same number of rows for every request and fills up with id 0, which
    the target may well choose; what it then samples behind it is a verified row like any other.
    Behind an accepted end token nothing is sampled. A request without an end token gets nothing.
    """
    return [*request.parameters.end_ids[:1]] * max(count, 0)
