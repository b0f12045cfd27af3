"""The interface of drafters: four methods that the draft's loop calls with its sessions, the tree
of each session, and the nodes that a drafter adds.

Trees hold the draft's own log-probabilities. Code that ranks candidates sharpens them
(`sources.tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from card.cache import ROOT, SlotRequest, States, follow
from card.constraints.constraint import DraftConstraint
from card.speculation.ngram_tables import Followers


@dataclass(frozen=True, slots=True)
class GrowthConfig:
    """The settings of growth rules.

    siblings        children of a node by its depth, the text's end first (`sampled`)
    fan_out         forks at each place of a chain (`fan_out`)
    doubt           probability up to which a token is doubtful (`branch`)
    doubt_branches  branches at the most doubtful token (`branch`)
    shared_tokens   last tokens that must agree for nodes to share their subtrees (`graph`)
    """

    siblings: Sequence[int] = (4, 2, 2)
    fan_out: int = 3
    doubt: float = 0.3
    doubt_branches: int = 3
    shared_tokens: int = 2


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The settings of drafters.

    width               most nodes that one pass expands
    depth               tokens that a tree may run ahead of the text
    growth              key of `GROWTHS`: the rule of requests that name none
    growth_config       the settings of growth rules
    ngram_tokens        most n-gram proposals behind a node
    parcel              tokens that a smaller draft writes for one pass
    adapts              a pass expands fewer nodes where their rows cost more than their gain
    prefill_chunk       most tokens of a text that one pass reads
    side_branches       requests beside the draft's own continuation (TensorRT-LLM, vLLM)
    side_branch_tokens  tokens of each side branch
    """

    width: int = 4
    depth: int = 32
    growth: str = "best_first"
    growth_config: GrowthConfig = field(default_factory=GrowthConfig)
    ngram_tokens: int = 6
    parcel: int = 4
    adapts: bool = True
    prefill_chunk: int = 64
    side_branches: int = 0
    side_branch_tokens: int = 1
    mask_ids: tuple[int, ...] = ()
    block: int = 1
    ngrams: Followers | None = None


def path_to(node: int, token: Sequence[int], parent: Sequence[int]) -> list[int]:
    """Tokens from the root to `node`, of a tree with the `token` and `parent` of each node."""
    tokens: list[int] = []
    while node != ROOT:
        tokens.append(token[node])
        node = parent[node]
    return tokens[::-1]


class Nodes(NamedTuple):
    """Candidates that a drafter adds to a session's tree, parents before children.

    tokens    [nodes] token ids
    parents   [nodes] number of a node of the tree, or `ROOT`; new nodes are numbered behind the
              nodes of the tree
    logprobs  [nodes] log-probability of each token given its parent, at most 0
    passes    draft passes that the nodes took, as pacings count them; 0 for a pass that only reads
              text
    saved     rows of a pass saved because nodes share their subtrees
    waits     nothing was computed, because the nodes come asynchronously
    replaces  the nodes replace the tree, which had none with KV; they are numbered from 0
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    passes: int = 1
    saved: int = 0
    waits: bool = False
    replaces: bool = False


class ReRoot(NamedTuple):
    """The effect of a commit on a tree, in the node numbers before it.

    committed  tokens, in order
    path       nodes along the committed tokens, as far as the tree had them
    surviving  nodes that stay, in order: node i of the tree was number `surviving[i]`
    """

    committed: list[int]
    path: list[int]
    surviving: list[int]


class GrowingTree:
    """Nodes below the last committed token; parents stand before their children.

    The fields are lists by node: a pass adds a dozen nodes, for which NumPy's overhead is too high.

    token, parent  parent is a node or `ROOT`
    score          log-probability of the path from the root
    depth          0 for children of the root
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        self.token: list[int] = []
        self.parent: list[int] = []
        self.score: list[float] = []
        self.depth: list[int] = []

    def __len__(self) -> int:
        return len(self.token)

    @property
    def room(self) -> int:
        """Nodes that may still be added."""
        return self.capacity - len(self.token)

    @property
    def height(self) -> int:
        """Nodes of the longest path."""
        return max(self.depth, default=-1) + 1

    def with_nodes(self, nodes: Nodes) -> GrowingTree:
        """A copy of the tree with these nodes added."""
        other = GrowingTree(self.capacity)
        other.token, other.parent = [*self.token], [*self.parent]
        other.score, other.depth = [*self.score], [*self.depth]
        other.add(nodes)
        return other

    def add(self, nodes: Nodes) -> None:
        """Append nodes; if not all fit, only the first of them."""
        room = self.room
        self.token += nodes.tokens[:room]
        self.parent += nodes.parents[:room]
        for parent, logprob in zip(nodes.parents[:room], nodes.logprobs[:room], strict=True):
            is_first = parent == ROOT
            self.score.append(logprob if is_first else self.score[parent] + logprob)
            self.depth.append(0 if is_first else self.depth[parent] + 1)

    def below(self, node: int) -> dict[int, int]:
        """The children of a node (or of `ROOT`) by their tokens."""
        return {self.token[child]: child for child, at in enumerate(self.parent) if at == node}

    def depth_of(self, node: int) -> int:
        """Depth of a node; -1 for `ROOT`."""
        return -1 if node == ROOT else self.depth[node]

    def path(self, node: int) -> list[int]:
        """Tokens from the root to `node`."""
        return path_to(node, self.token, self.parent)

    def re_root(self, committed: list[int]) -> ReRoot:
        """Make the last of the `committed` tokens the root and keep only its descendants.

        If the tree lacks a committed token, the tree becomes empty.
        """
        path = follow(self.token, self.parent, ROOT, committed)
        if len(path) < len(committed) or not path:
            self.clear()
            return ReRoot(committed, path, [])
        return ReRoot(committed, path, self._keep_below(path[-1]))

    def _keep_below(self, root: int) -> list[int]:
        """Drop all but the descendants of `root`; returns the former numbers of those that stay."""
        place = {root: ROOT}
        kept: list[int] = []
        for node in range(root + 1, len(self.token)):
            if self.parent[node] in place:
                place[node] = len(kept)
                kept.append(node)
        above, base = self.score[root], self.depth[root] + 1
        self.token = [self.token[node] for node in kept]
        self.parent = [place[self.parent[node]] for node in kept]
        self.score = [self.score[node] - above for node in kept]
        self.depth = [self.depth[node] - base for node in kept]
        return kept


@dataclass(slots=True, eq=False)
class DraftedSession:
    """A drafter's view of one session. The loop writes it; drafters read it.

    number      number of the session, from `open` to `close`
    request     the session's request
    tokens      prompt and committed output
    tree        candidates below the last of `tokens`
    constraint  keeps candidates within the text's guide; None: there is no guide
    passes      passes that the drafter may make before the loop looks at the session again
    states      returns the first position and the target's hidden states of the text's tokens from
                a position on (`SlotView.states`); None: there are none
    """

    number: int
    request: SlotRequest
    tokens: list[int]
    tree: GrowingTree
    constraint: DraftConstraint | None = None
    passes: int = 1
    states: Callable[[int], tuple[int, States]] | None = None

    @property
    def tokens_left(self) -> int:
        """Tokens that the text may still get; candidates further ahead are useless."""
        return len(self.request.prompt) + self.request.max_tokens - len(self.tokens)


class Drafter(Protocol):
    """Makes candidates. One thread calls it.

    model  the model that it needs
    """

    model: ClassVar[Model]

    def __init__(self, model: Any, config: DraftConfig) -> None:
        """`model` is of the type that the class attribute `model` names, or None."""

    def open(self, session: DraftedSession) -> None:
        """Begin a session with an empty tree. Raises `EngineError` when there is no room."""

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        """Follow a commit of the target: `session` holds the new state, `re_root` the change of its
        tree."""

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        """Make one pass over these sessions, or as many as `DraftedSession.passes` allows.

        Returns the new nodes for the tree of each; None: the drafter adds nothing more before the
        next commit. The loop calls this in every step, even without a session.
        """

    def close(self, session: DraftedSession) -> None:
        """Forget a session."""


Model = Literal["engine", "engines", "head", "tensorrt_llm", "vllm", "none"]
"""The model of a drafter: the draft's `Engine`, the engines of the draft and `draft_small`, a head
on the target's hidden states, the `Chains` of TensorRT-LLM or vLLM, or no model."""
