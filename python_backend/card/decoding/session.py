"""One session of the target, and its rows of a pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from card.cache import (
    MAX_ROWS,
    NO_CANDIDATES,
    Candidates,
    Finish,
    SlotRequest,
    States,
    Step,
    TargetSlot,
    Tree,
    num_agreed,
)
from card.constraints.constraint import Constraint
from card.engines import FOLLOWS_PREFIX, Engine, Logits, SequenceTokens
from card.sampling import History, SamplingParameters, likeliest, log_probability
from card.speculation.acceptance import Outcome, VerifyResult
from card.speculation.control import Share
from card.speculation.pacing import PACINGS, Pacing, Progress
from card.speculation.sources import WITHOUT_DRAFT, Source, chain_ahead
from card.speculation.sources.ngram import JUDGED, NgramProposer


class Query(NamedTuple):
    """The candidates that sources gave one session.

    drafted  number of candidates from the draft's tree, before any was left out
    at_ns    time of the query, on the monotonic clock; 0: there was no query
    """

    candidates: Candidates = NO_CANDIDATES
    drafted: int = 0
    at_ns: int = 0

    def first(self, count: int) -> Query:
        """The query with only the first `count` candidates of its chain."""
        if count >= len(self.candidates):
            return self
        return Query(self.candidates.first(count), self.drafted, self.at_ns)

    def outcome(self, result: VerifyResult | None) -> Outcome:
        """What became of the candidates, for the controller."""
        if result is None:
            return Outcome()
        path = [row - 1 for row in result.rows[1:]]  # the first row is the last committed token
        return Outcome.of(self.candidates, self.drafted, path, rejected=result.rejected)


NO_QUERY = Query()


_LEAST_WAIT = 1 / 64
"""Least share of the longest wait: each wait in vain halves the next one, so that with a draft that
lives and gives nothing a text costs one whole wait and not one per token."""


@dataclass(slots=True, eq=False)
class TargetSession:
    """History, KV session, and the state of the pacing.

    The KV cache holds the history without its last token, which is the next pass's first row. If
    the engine session begins with kept KV, prefill continues behind it.

    number         a number that no other session gets
    queries        the session may have candidates
    proposes       n-grams may be among its candidates
    drafts         the draft, or a device, makes candidates for it
    is_remote      a device makes its candidates
    adapts         the controller may stop the draft for it
    takes_turns    the controller may make it wait for the draft
    constraint     keeps the text within its guide; None: there is no guide
    stops_draft    whether the target stopped the draft for this session
    wait_share     how much of the longest wait the next one may last
    awaited        draft passes for which the next pass waits; 0: it does not wait
    patience_s     longest wait for the draft, in seconds
    """

    slot: TargetSlot
    session_id: int
    request: SlotRequest
    history: History
    engine_session: int
    vocabulary: int
    constraint: Constraint | None = None
    proposer: NgramProposer = field(default_factory=NgramProposer)
    wait_share: float = 1.0
    stops_draft: bool = False
    awaited: int = 0
    patience_s: float = 0.0
    committed_s: float = field(default_factory=time.monotonic)
    number: int = field(init=False)
    pacing: Pacing = field(init=False)
    parameters: SamplingParameters = field(init=False)
    queries: bool = field(init=False)
    proposes: bool = field(init=False)
    drafts: bool = field(init=False)
    is_remote: bool = field(init=False)
    adapts: bool = field(init=False)
    takes_turns: bool = field(init=False)

    def __post_init__(self) -> None:
        """Derive the fields that hold for all passes from the request."""
        request = self.request
        self.number, self.parameters = self.session_id, request.parameters
        self.pacing = pacing = PACINGS[request.pacing]
        self.queries = pacing.queries
        self.proposes = pacing.queries and request.proposes
        self.drafts = pacing.drafts and request.drafter not in WITHOUT_DRAFT
        self.is_remote = request.is_remote
        self.adapts = pacing.adapts and not request.is_remote
        self.takes_turns = pacing.takes_turns and self.adapts

    @property
    def waits(self) -> bool:
        """Whether the session's next pass waits for the draft."""
        return self.drafts and (self.pacing.waits or self.awaited > 0)

    @property
    def is_in_turns(self) -> bool:
        """Whether the draft works only while the session waits, and not during its passes."""
        return not self.pacing.parallel or self.awaited > 0

    @property
    def room(self) -> int:
        """Candidates that the text has room for; the last token is always the target's own."""
        return self.request.max_tokens - self.history.generated - 1

    def tree(self) -> Tree | None:
        """A snapshot of the tree of the draft, or of the chain of the session's device."""
        return self.slot.tree(self.session_id, self.vocabulary, remote=self.is_remote)

    def reads_prompt(self, engine: Engine) -> bool:
        """Whether the KV cache lacks more than the last token."""
        return len(self.history) - engine.length(self.engine_session) > 1

    # --- waiting ------------------------------------------------------------------------------

    def take_turn(self, reads: bool, *, draft_lives: bool, longest_wait_s: float) -> bool:
        """Decide whether the session runs, or waits for its guide or for the draft.

        A session that reads its prompt does not wait for the draft. The slot counts waits. Each
        wait that times out makes the next one shorter.
        """
        if self.constraint is not None and not self.constraint.is_ready:
            self.slot.count_time(runs=True)
            return False
        longest_s = self.patience_s if self.awaited else longest_wait_s
        runs = reads or self._end_wait(longest_s, draft_lives=draft_lives)
        self.slot.count_time(runs=runs)
        return runs

    def _end_wait(self, longest_s: float, *, draft_lives: bool) -> bool:
        """End the wait if the draft made the awaited passes or the wait timed out."""
        if not self._awaits_draft(draft_lives=draft_lives):
            self.wait_share = 1.0
            return True
        is_over = time.monotonic() - self.committed_s > self.wait_share * longest_s
        if is_over:
            self.wait_share = max(_LEAST_WAIT, self.wait_share / 2)
        return is_over

    def _awaits_draft(self, *, draft_lives: bool) -> bool:
        """Whether the session waits for passes that the draft has not made yet.

        The session never waits for a dead draft. Whether a device lives is unknown. The last token
        has no room for a candidate.
        """
        may_have_some = self.drafts and (draft_lives or self.is_remote) and self.room > 0
        return may_have_some and not self.pacing.target_may_run(self._progress())

    def _progress(self) -> Progress:
        num_draft_tokens = self.request.num_draft_tokens
        draft = self.slot.draft_progress(self.session_id, len(self.history), remote=self.is_remote)
        ahead, forks = 0, False
        if self.pacing.looks_ahead:
            ahead, forks = chain_ahead(self, num_draft_tokens)
        return Progress(
            num_draft_tokens,
            draft.passes,
            draft.exhausted,
            ahead=ahead,
            forks=forks,
            awaited=self.awaited,
        )

    # --- rows of a pass -----------------------------------------------------------------------

    def prefill(self, engine: Engine, chunk: int) -> SequenceTokens:
        """The next chunk of tokens without KV, while more than the last token lacks KV."""
        known = engine.length(self.engine_session)
        missing = len(self.history) - known
        scored = self.request.prompt_log_probabilities and known < len(self.request.prompt) - 1
        if scored:  # each token needs a row of logits; a pass has room for a verification's
            chunk = min(chunk, MAX_ROWS)
        tokens = self.history.tokens[known : known + chunk]
        self.read_text(known + len(tokens))
        wanted = len(tokens) if scored else int(len(tokens) == missing)
        return SequenceTokens(self.engine_session, tokens, logits=wanted)

    def score_prompt(self, known: int, logits: Logits, rows: int) -> None:
        """Report log-probabilities of the prompt tokens behind `rows` rows, from `known` on."""
        prompt, count = self.request.prompt, self.request.likeliest
        for row in range(min(rows, len(prompt) - 1 - known)):
            place, values = known + row + 1, logits.row(row)
            found = likeliest(values, count) if count else None
            self.slot.score_prompt(place, log_probability(values, int(prompt[place])), found)

    def query(self, sources: Mapping[str, Source], share: Share) -> Query:
        """Ask the sources for the likeliest continuation of the committed text."""
        limit = min(share.num_rows - 1, self.room)
        if limit < 1 or not self.queries:
            return NO_QUERY
        if self.constraint is not None and self.constraint.is_slow:
            return NO_QUERY  # only the mask of the pass's first row is ready in time
        self.read_text(len(self.history))
        at_ns = time.monotonic_ns()
        found = NO_CANDIDATES
        drafted = 0
        for source in sources.values():
            if source.needs_draft and share.drafts:
                found = source.candidates(self, found, limit)
                drafted = len(found)
            elif self.proposes and not source.needs_draft:
                most = min(limit, len(found) + share.ngram_tokens)
                found = source.candidates(self, found, most, share.least_chance)
        if share.drafts:
            self.slot.count_query(hit=drafted > 0)
        if self.constraint is not None and found.is_chain:
            found = _guided(found, self.constraint.forced()[:limit])
            drafted = min(drafted, len(found))
        return Query(found, drafted, at_ns)

    def rows(self, candidates: Candidates) -> SequenceTokens:
        """The last committed token and the candidates behind it."""
        tokens = [self.history.tokens[-1], *candidates.tokens]
        if candidates.is_chain:
            return SequenceTokens(self.engine_session, tokens)
        parents = [FOLLOWS_PREFIX, *(parent + 1 for parent in candidates.parents)]
        return SequenceTokens(self.engine_session, tokens, parents)

    def read_text(self, until: int) -> None:
        """Add the text up to `until`, and the prediction, to the n-gram proposer, if the session
        proposes n-grams. A long prompt is added chunk by chunk, because running streams wait
        meanwhile."""
        read = self.proposer.length
        if not self.proposes or read == until:
            return
        behind = self.history.prompt_length
        judged = until - max(read, behind - JUDGED)
        self.proposer.extend(self.history.tokens[read:until], judged)
        if read < behind <= self.proposer.length:
            self.proposer.suppose(self.request.prediction.tolist())

    # --- results of a pass --------------------------------------------------------------------

    def tell_draft(self, *, works: bool) -> bool:
        """Tell the draft whether it works for this session, if that changed; returns whether the
        draft restarts."""
        if works is not self.stops_draft:
            return False
        self.stops_draft = not works
        end = len(self.request.prompt) + self.request.max_tokens
        self.slot.stop_draft_until(0 if works else end)
        return works

    def await_draft(self, share: Share) -> None:
        """Set the draft passes for which the next pass waits."""
        passes = share.awaited if share.drafts else 0
        if passes != self.awaited:
            self.slot.await_draft(passes)
        self.awaited, self.patience_s = passes, share.patience_s

    def commit(self, result: VerifyResult, query: Query) -> None:
        """Publish the verification of the candidates of `query` to the draft and `card`."""
        committed, accepted = len(result.tokens), result.num_accepted
        # Counters come first, so that they are complete when `card` sees the last token.
        self.slot.count_step(
            committed,
            accepted,
            len(query.candidates),
            rejected=result.rejected,
            foreign=result.foreign,
        )
        if self.request.trace:
            self.slot.trace(
                Step(query.candidates, query.drafted, accepted, committed, queried_ns=query.at_ns)
            )
        self.slot.commit(
            result.tokens,
            result.accepted,
            result.log_probabilities,
            result.finish,
            result.likeliest,
        )
        self.read_text(len(self.history))
        self.committed_s = time.monotonic()

    def publish_states(self, engine: Engine, confirmed: Sequence[int], states: States) -> None:
        """Publish the hidden states of a pass's `confirmed` rows, before their KV joins the prefix,
        for a draft that reads them. Of a prompt only the last tokens are published, as many as the
        slot holds.

        states  [rows, numbers] of the pass
        """
        first, places = engine.length(self.engine_session), self.slot.state_tokens
        if not places or not self.drafts or self.is_remote:
            return
        behind = self.history.prompt_length - places - first
        kept = confirmed[max(0, behind) :]
        if kept:
            self.slot.publish_states(first + len(confirmed) - len(kept), states[kept])

    def remember(self, engine: Engine) -> None:
        """Keep this session's KV for later texts with the same beginning."""
        if self.request.reuses_kv:
            engine.remember(self.engine_session, self.history.tokens, self.request.salt)

    def close(self, engine: Engine) -> None:
        if self.slot.finish(self.session_id) is not Finish.FAILED:  # its KV may be wrong
            self.remember(engine)
        engine.close_session(self.engine_session)
        if self.constraint is not None:
            self.constraint.close()


def _guided(chain: Candidates, forced: list[int]) -> Candidates:
    """The chain as far as it agrees with the tokens that the guide forces, then the forced rest; a
    chain that begins with all forced tokens stays as it is."""
    agreed = num_agreed(chain.tokens, forced)
    if agreed == len(forced):
        return chain
    behind = forced[agreed:]
    return chain.first(agreed).followed_by(Candidates.chain(behind, [1.0] * len(behind)))
