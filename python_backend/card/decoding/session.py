"""One session as the target sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from card.cache import (
    NO_CANDIDATES,
    ROOT,
    Candidates,
    SlotRequest,
    TargetSlot,
    best_chain,
    best_subtree,
    descend,
)
from card.decoding.experience import Experience
from card.decoding.judgement import Judgement
from card.decoding.patience import Patience
from card.decoding.rows import RowPlan
from card.decoding.walk import Verdict
from card.engines import FOLLOWS_PREFIX, Engine, Rows
from card.sampling import History
from card.settings import SpeculationSettings
from card.speculation.ngram import NgramProposer
from card.speculation.pacing import PACINGS, Pacing, Progress
from card.speculation.score import score_exponent


@dataclass(slots=True)
class TargetSession:
    """History, KV session and the candidates under verification.

    The KV cache holds the history without its last token: that one is the next pass's first row.

    asked_cache    whether the query of this pass did, and `drafted` candidates were found
    draft_works    whether it does so for the pass that was planned last
    told_until     length below which the draft was told to rest
    """

    slot: TargetSlot
    generation: int
    request: SlotRequest
    history: History
    engine_session: int
    proposer: NgramProposer = field(default_factory=NgramProposer)
    candidates: Candidates = NO_CANDIDATES
    asked_cache: bool = False
    drafted: int = 0
    judgement: Judgement = field(default_factory=Judgement)
    patience: Patience = field(default_factory=Patience)
    draft_works: bool = False
    told_until: int = 0
    committed_s: float = field(default_factory=time.monotonic)

    @classmethod
    def adopt(
        cls, slot: TargetSlot, generation: int, request: SlotRequest, engine: Engine
    ) -> TargetSession:
        """Take over a slot, going on behind the tokens that are committed already."""
        committed = slot.adopt(generation)
        history = History(request.prompt, len(request.prompt) + request.max_tokens)
        for token in slot.output(0, committed).tolist():
            history.append(token)
        return cls(slot, generation, request, history, engine.open_session())

    @property
    def pacing(self) -> Pacing:
        return PACINGS[self.request.pacing]

    def reads_prompt(self, engine: Engine) -> bool:
        """Whether the KV cache lacks more than the last token."""
        return len(self.history) - engine.length(self.engine_session) > 1

    def may_run(
        self,
        engine: Engine,
        how: SpeculationSettings,
        *,
        draft_lives: bool,
        longest_wait_s: float,
    ) -> bool:
        """Whether the pacing allows a pass; prefill waits for nobody."""
        runs = self.reads_prompt(engine)
        if not runs:
            progress = self._progress(engine.vocabulary, how)
            runs = self._has_waited(progress, longest_wait_s, draft_lives=draft_lives)
        self.slot.count_time(runs=runs)
        return runs

    def _has_waited(self, progress: Progress, longest_wait_s: float, *, draft_lives: bool) -> bool:
        """Whether what the pacing waits for is there, or has been waited for long enough. A dead
        draft is never waited for."""
        if not draft_lives or self.pacing.target_may_run(progress):
            self.patience.restore()
            return True
        return self.patience.ends(time.monotonic() - self.committed_s, longest_wait_s)

    def _progress(self, vocabulary: int, how: SpeculationSettings) -> Progress:
        gamma = self.request.num_draft_tokens
        draft = self.slot.draft_progress(self.generation, len(self.history))
        ahead = 0
        if self.pacing.looks_ahead:
            ahead = len(self._from_cache(gamma, vocabulary, how))
        return Progress(gamma, draft.passes, draft.exhausted, ahead=ahead)

    def prefill(self, engine: Engine, chunk: int) -> Rows | None:
        """The next chunk of what the KV cache lacks; None once only the last token is missing."""
        known = engine.length(self.engine_session)
        missing = len(self.history) - known
        if missing <= 1:
            return None
        tokens = self.history.tokens[known : known + chunk].tolist()
        self._remember(known + len(tokens))
        self.candidates = NO_CANDIDATES
        return Rows(self.engine_session, tokens, logits=int(len(tokens) == missing))

    def _remember(self, until: int) -> None:
        """Let guesses come from the text up to there, if anybody asks for guesses. A long prompt is
        taken in chunk by chunk, for running streams wait meanwhile."""
        if self.pacing.queries:
            self.proposer.extend(self.history.tokens[self.proposer.length : until].tolist())

    def drafts(self, *, crowd_rests: bool) -> bool:
        """Whether the draft works for this session; `crowd_rests`: for none of those of CARD."""
        if self.pacing.adapts:
            return not crowd_rests and self.judgement.lets_work(len(self.history))
        return self.pacing.drafts

    def wakes_draft(self, *, drafts: bool) -> bool:
        """Note whether the draft works for the next pass; whether it did not for the one before."""
        wakes = drafts and not self.draft_works
        self.draft_works = drafts
        return wakes

    def shares_cores(self, *, crowd_rests: bool) -> bool:
        """Whether the draft computes beside this session's passes: while the prompt is read it
        keeps to a head start."""
        return self.history.generated > 0 and self.drafts(crowd_rests=crowd_rests)

    def query(
        self, rows: int, vocabulary: int, how: SpeculationSettings, *, drafts: bool = True
    ) -> Candidates:
        """Ask the cache, if the draft fills it, for the likeliest continuation of what is
        committed."""
        request = self.request
        self.asked_cache, self.drafted = False, 0
        limit = min(rows, request.max_tokens - self.history.generated) - 1
        if limit < 1 or not self.pacing.queries:
            return NO_CANDIDATES
        self._remember(len(self.history))
        found = NO_CANDIDATES
        if drafts:
            found = self._from_cache(limit, vocabulary, how)
            self.asked_cache, self.drafted = True, len(found)
            self.slot.count_query(hit=self.drafted > 0)
        if not self.judgement.leans_on_text:
            limit = min(limit, len(found) + how.lookahead)
        return self._lengthened(found, limit)

    def _from_cache(self, limit: int, vocabulary: int, how: SpeculationSettings) -> Candidates:
        tree = self.slot.tree(self.generation, vocabulary)
        if tree is None or tree.root_length > len(self.history):
            return NO_CANDIDATES
        behind_root = self.history.tokens[max(0, tree.root_length) :].tolist()
        node = descend(tree, ROOT, behind_root)
        if node is None:
            return NO_CANDIDATES
        exponent = score_exponent(greedy=self.request.parameters.is_greedy)
        if how.query == "subtree":
            return best_subtree(tree, node, limit, how.branches, exponent)
        return best_chain(tree, node, limit, exponent)

    def _lengthened(self, found: Candidates, length: int) -> Candidates:
        """A chain that left rows unused gets guesses from the text behind its end."""
        if not found.is_chain:
            return found
        guessed = self.proposer.propose(found.tokens, length - len(found))
        if not guessed:
            return found
        chances = list(found.chances)
        chance = chances[-1] if chances else 1.0
        for _ in guessed:
            chance *= self.proposer.hit_rate
            chances.append(chance)
        return Candidates.chain([*found.tokens, *guessed], chances)

    def rows(self, candidates: Candidates) -> Rows:
        """The last committed token and the candidates behind it."""
        self.candidates = candidates
        tokens = [int(self.history.tokens[-1]), *candidates.tokens]
        if candidates.is_chain:
            return Rows(self.engine_session, tokens)
        parents = [FOLLOWS_PREFIX, *(parent + 1 for parent in candidates.parents)]
        return Rows(self.engine_session, tokens, parents)

    def foresee(self, experience: Experience, promise: float) -> None:
        """Let the draft not even begin if those of the sessions before had nothing to give."""
        self.judgement.begin(len(self.history), experience, self.request.parameters, promise)
        self._tell_draft()

    def weigh_drafting(self) -> None:
        """Let the draft rest if it does not pay for this session."""
        if self.pacing.adapts:
            self.judgement.weigh(len(self.history))
            self._tell_draft()

    def lean_on_text(self, verdict: Verdict, plan: RowPlan, sharing: int) -> None:
        """Let the draft rest while the text foretells itself."""
        foretold = self._foretold(plan, sharing)
        self.judgement.lean_on_text(foretold=foretold, corrects=verdict.corrects)
        self._tell_draft()

    def _foretold(self, plan: RowPlan, sharing: int) -> bool:
        """Whether guesses fill the rows that are worth it, and gain more than the draft would."""
        agreement = self.judgement.acceptance.rate
        wanted = plan.guesses_instead(self.proposer.hit_rate, agreement, sharing)
        return wanted is not None and len(self.proposer.propose([], wanted)) == wanted

    def _tell_draft(self) -> None:
        """Until which length it rests, if that is news."""
        until = self.judgement.rests_until(len(self.request.prompt) + self.request.max_tokens)
        if until != self.told_until:
            self.told_until = until
            self.slot.rest_draft_until(until)

    def commit(self, verdict: Verdict) -> None:
        """Publish what was decided; the draft and `card` see it at once."""
        # Counted first: whoever sees the last token sees all there is to count.
        self.slot.count_step(
            len(verdict.tokens),
            verdict.accepted,
            len(self.candidates),
            corrects=verdict.corrects,
        )
        self.slot.commit(
            verdict.tokens, verdict.from_cache, verdict.log_probabilities, verdict.finish
        )
        self._remember(len(self.history))
        self.committed_s = time.monotonic()

    def judge_draft(self, verdict: Verdict, plan: RowPlan, sharing: int) -> None:
        """By what the cache gave, if it was asked, to a pass of so many sessions."""
        if self.asked_cache:
            self.judgement.observe(
                plan,
                drafted=self.drafted,
                verified=len(self.candidates),
                accepted=verdict.accepted,
                corrects=verdict.corrects,
                sharing=sharing,
            )
