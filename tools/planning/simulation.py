"""The two loops in virtual time, for every pacing.

`simulate` decodes one text: the draft's passes and the target's passes are processes that take the
time of a step-cost model, meet in the candidate tree, and share a device if they are placed on
one. What each of them does between its passes follows `card.drafting` and `card.decoding` step by
step; who may run when is decided by the registry of pacings, and whether the draft works by the
product's own controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from card.cache import Candidates
from card.sampling import SamplingParameters
from card.speculation.control import Controller, Outcome, Plan, Share
from card.speculation.pacing import PACINGS, Progress
from planning.candidates import CandidateTree, Chain, NgramProposals, Node, Parcels, Text
from planning.clock import Clock, Process, Signal, Work
from planning.scenario import DRAFTERS, Machinery, Pacing, Run, Speculation

_INSTANT = 1e-6
"""Milliseconds within which two events are one."""


def simulate(
    text: Text,
    pacing: Pacing,
    config: Speculation,
    machinery: Machinery,
    seed: int = 0,
    control: Controller | None = None,
) -> Run:
    """Decode `text` once. The same arguments give the same figures.

    control  decides whether the draft works and how much of a chain is verified, and remembers the
             texts before; None: the draft always works, and passes have `Speculation.rows`
    """
    return _Loops(text, pacing, config, machinery, seed, control).run()


class _Loops:
    """Both loops over one text. The pacing is the product's own pair of predicates."""

    def __init__(
        self,
        text: Text,
        pacing: Pacing,
        config: Speculation,
        machinery: Machinery,
        seed: int,
        control: Controller | None,
    ) -> None:
        self.text = text
        self.config = config
        self.machinery = machinery
        self.pacing = PACINGS[pacing]
        self.clock = Clock()
        self.result = Run()
        self.committed = 0
        self.tree = CandidateTree(
            text, config.nodes, seed, config.growth, config.growth_config, config.num_draft_tokens
        )
        self.drafts_proposals = (Parcels if self.has_smaller_draft else NgramProposals)(text)
        self.targets_proposals = NgramProposals(text)
        self.told: list[tuple[float, int]] = []
        self.exhausted = False
        self.inherited = 0
        self.commits: list[tuple[float, int]] = []
        self.known = 0
        self.control = control
        self.is_drafting = True
        self.awaited = 0
        self.number = id(self)
        self.parameters = SamplingParameters(temperature=text.foresight.temperature)
        self.proposer = _Proposer(self)
        self.committed_signal = Signal(machinery.delays.wake + machinery.delays.bus)
        self.drafted_signal = Signal(machinery.delays.wake + machinery.delays.bus)

    def run(self) -> Run:
        self.clock.start(self._target())
        if self.drafts:
            self.clock.start(self._draft())
        self.clock.run()
        if self.control is not None:
            self.control.forget(self)
        self.result.tokens = len(self.text)
        self.result.ms = self.clock.now + self.machinery.delays.stream
        return self.result

    @property
    def queries(self) -> bool:
        return self.pacing.queries

    @property
    def drafts(self) -> bool:
        return self.pacing.drafts and self.config.drafter in DRAFTERS

    @property
    def has_smaller_draft(self) -> bool:
        return self.drafts and DRAFTERS[self.config.drafter].model == "engines"

    @property
    def most_proposals(self) -> tuple[int, int]:
        """Behind the text's end and behind a node of a draft pass."""
        if self.has_smaller_draft:
            return self.config.parcel, self.config.parcel
        # A device drafts by its model alone.
        ngrams = 0 if self.is_remote else self.config.ngram_tokens
        return ngrams, min(ngrams, DRAFTERS[self.config.drafter].most_proposals)

    @property
    def is_remote(self) -> bool:
        return self.config.is_remote

    @property
    def adapts(self) -> bool:
        return self.pacing.adapts

    @property
    def takes_turns(self) -> bool:
        return self.pacing.takes_turns

    @property
    def left(self) -> int:
        return len(self.text) - self.committed

    def context(self, committed: int) -> int:
        return self.text.record.prompt_tokens + committed

    # --- target -------------------------------------------------------------------------------

    def _target(self) -> Process:
        if self.machinery.prefill_ms:
            yield Work(self.machinery.prefill_ms)
        self._commit(1)
        while self.left:
            began_to_wait = self.clock.now
            while not self._target_may_run():
                yield self._next_pass()
            plan = self._plan()
            self.is_drafting = any(share.drafts for share in plan.shares)
            (share,) = plan.shares
            self.awaited = share.awaited
            outcome = self._query(plan)
            began = self.clock.now
            yield from self._verify(1 + outcome.verified, alone=not plan.has_company)
            self.result.accepted += outcome.accepted
            self._commit(outcome.accepted + 1)
            if self.control is not None:
                seconds, waited_s = (self.clock.now - began) / 1e3, (began - began_to_wait) / 1e3
                self.control.observe(plan, [self], [outcome], seconds, waited_s)

    def _plan(self) -> Plan:
        if self.control is not None:
            pass_ms = self.machinery.draft.work(1, self.context(self.committed)).ms
            return self.control.plan([self], draft_lives=True, draft_pass_ms=pass_ms)
        config = self.config
        return Plan([Share(self.drafts, config.rows, config.ngram_tokens, config.is_remote)])

    def _target_may_run(self) -> bool:
        ahead, forks = 0, False
        if self.pacing.looks_ahead:
            ahead, forks = self.tree.ahead(
                self.committed - 1, self.config.num_draft_tokens, self._seen
            )
        follows = self.known == self.committed
        return self.pacing.target_may_run(
            Progress(
                self.config.num_draft_tokens,
                passes=sum(n for at, n in self.told if at <= self._seen) if follows else 0,
                exhausted=self.exhausted and follows,
                ahead=ahead,
                forks=forks,
                awaited=self.awaited,
            )
        )

    def _query(self, plan: Plan) -> Outcome:
        """The candidates that join the pass, and how many of them the target will accept."""
        (share,) = plan.shares
        limit = min(share.num_rows, self.left) - 1
        if limit < 1 or not self.pacing.queries:
            return Outcome()
        chain, chances = list[Node](), list[float]()
        if share.drafts:
            chain, chances = self._from_tree(limit)
            self.result.queries += 1
            self.result.hits += bool(chain)
        right, chance = _leading(chain), chances[-1] if chances else 1.0
        proposed = list(
            self.targets_proposals.behind(
                self.committed + len(chain),
                min(limit - len(chain), share.ngram_tokens),
                on_path=right == len(chain),
                least=share.least_chance / max(chance, share.least_chance),
            )
        )
        right += sum(is_right for is_right, _ in proposed)
        chances += [chance * likelihood for _, likelihood in proposed]
        verified = len(chances)
        if self.control is not None:
            (verified,) = self.control.trim(
                plan, [self], [Candidates.chain([0] * verified, chances)]
            )
        accepted = min(right, verified)
        candidates = Candidates.chain([0] * verified, chances[:verified])
        return Outcome.of(candidates, len(chain), range(accepted), rejected=accepted < verified)

    def _from_tree(self, limit: int) -> Chain:
        return self.tree.query(self.committed - 1, limit, self._seen)

    @property
    def _seen(self) -> float:
        """When what the other side sees by now was published."""
        return self.clock.now - self.machinery.delays.bus + _INSTANT

    def _verify(self, rows: int, *, alone: bool) -> Iterator[Work]:
        """A pass over the last committed token and the candidates behind it."""
        began, cost = self.clock.now, self.machinery.target
        alone = alone and self.machinery.target_alone is not None
        if alone:
            assert self.machinery.target_alone is not None
            cost = self.machinery.target_alone
        yield cost.work(rows, self.context(self.committed))
        self.result.steps += 1
        (self.result.rows_alone if alone else self.result.rows_of_steps).append(rows)
        self.result.target_busy_ms += self.clock.now - began

    def _commit(self, tokens: int) -> None:
        self.targets_proposals.extend(self.committed, self.committed + tokens)
        self.committed += tokens
        self.commits.append((self.clock.now, self.committed))
        self.committed_signal.raised += 1

    # --- draft --------------------------------------------------------------------------------

    def _draft(self) -> Process:
        if self.machinery.prefill_ms and not self.pacing.parallel:
            yield Work(self.machinery.prefill_ms)
        while True:
            unread = self._follow_commits()
            if not self._draft_may_run() or not (rows := self._choose(unread)):
                yield self._next_commit()
                continue
            nodes, proposals = rows
            yield from self._forward((unread or len(nodes)) + proposals)
            height = self.tree.height
            self._hang(nodes, proposals)
            layers = self.tree.height - height
            # A parcel counts as many passes as the tree got layers.
            self.told.append((self.clock.now, max(1, layers) if self.has_smaller_draft else 1))
            self.drafted_signal.raised += 1

    def _draft_may_run(self) -> bool:
        begun = self.known > 0
        return (
            self.is_drafting
            and not self.exhausted
            and self.pacing.draft_may_run(
                Progress(
                    self.config.num_draft_tokens,
                    passes=sum(passes for _, passes in self.told),
                    inherited=self.inherited,
                    begun=begun,
                    awaited=self.awaited,
                )
            )
        )

    def _forward(self, rows: int) -> Iterator[Work]:
        began = self.clock.now
        yield self.machinery.draft.work(rows, self.context(self.known))
        self.result.draft_passes += 1
        self.result.draft_rows += rows
        self.result.draft_busy_ms += self.clock.now - began

    def _next_pass(self) -> Work | Signal:
        """A pass of the draft of which the target will hear, or the next one."""
        on_its_way = [at for at, _ in self.told if at > self._seen]
        if on_its_way:
            return Work(on_its_way[0] + self.machinery.delays.bus - self.clock.now)
        return self.drafted_signal

    def _next_commit(self) -> Work | Signal:
        """A commit that is on its way, or the next one."""
        if self.commits:
            return Work(self.commits[0][0] + self.machinery.delays.bus - self.clock.now)
        return self.committed_signal

    def _follow_commits(self) -> int:
        """Re-root at what is committed; returns the tokens of the text that were never read."""
        committed = self.known
        while self.commits and self.commits[0][0] <= self._seen:
            committed = self.commits.pop(0)[1]
        if committed > self.known:
            self.drafts_proposals.extend(self.known, committed)
            self.known = committed
            self.told, self.exhausted = [], False
            unread = self.tree.re_root(committed - 1)
            self.inherited = self.tree.height
            return unread
        return 0 if self.tree.root.expanded else 1

    def _choose(self, unread: int) -> tuple[list[Node], int] | None:
        """The nodes that the next pass forwards and the proposals behind the likeliest of them."""
        depth = min(self.config.depth, len(self.text) - self.known)
        if unread:
            most = max(0, min(self.most_proposals[0], depth - 1))
            return [self.tree.root], self._count_proposals(self.tree.root, most)
        width = min(self.config.width, self.tree.room)
        nodes = self.tree.grow(width, depth) if width > 0 else []
        if not nodes:
            self.exhausted = True
            self.drafted_signal.raised += 1
            return None
        best = nodes[0]
        ahead = best.place - self.tree.root.place - 1
        room = self.tree.room - len(nodes)
        most = max(0, min(self.most_proposals[1], depth - 2 - ahead, room))
        return nodes, self._count_proposals(best, most)

    def _count_proposals(self, node: Node, most: int) -> int:
        return sum(1 for _ in self.drafts_proposals.behind(self.tree.row(node), most, on_path=True))

    def _hang(self, nodes: list[Node], proposals: int) -> None:
        """The children of every forwarded node; a proposal among them is forwarded already."""
        now = self.clock.now
        for node in nodes:
            self.tree.expand(node, now)
        node = nodes[0]
        row = self.tree.row(node)
        for right, _ in list(self.drafts_proposals.behind(row, proposals, on_path=True)):
            row = self.tree.row(node)
            rank = self.text.rank(row) if right and row < len(self.text) else None
            if rank is None or rank >= len(node.children):
                return
            node = node.children[rank]
            self.tree.expand(node, now)


class _Proposer:
    """The target's n-grams as the controller asks for them: how many, not which."""

    def __init__(self, loops: _Loops) -> None:
        self._loops = loops

    @property
    def hit_rate(self) -> float:
        return self._loops.targets_proposals.hit_rate

    def propose(self, behind: Sequence[int], limit: int) -> list[int]:
        at = self._loops.committed + len(behind)
        return [0 for _ in self._loops.targets_proposals.behind(at, limit, on_path=True)]


def _leading(chain: list[Node]) -> int:
    return next((i for i, node in enumerate(chain) if not node.on_path), len(chain))
