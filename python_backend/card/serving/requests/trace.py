"""The events of speculation in one session, for a client that asks for them: steps and trees.

The trace reports every step of the target. It reads the tree now and then, and reports the nodes
that the draft added and dropped between two reads as one change.
"""

from __future__ import annotations

from typing import Any

from card.cache import CardSlot, Step, Tree
from card.serving.requests.delta import finite

MOST_NODES = 128
"""Most reported nodes of a tree: its first ones, which are connected."""

Event = dict[str, Any]


class Trace:
    """Reads a session's slot and reports new events as JSON (`card.serving.requests.delta`).

    prompt_tokens  tokens of the prompt; the trace reports places in the output
    began_ns       start of the session; the trace reports times since then
    remote         a device drafts for the session
    """

    def __init__(
        self,
        slot: CardSlot,
        session_id: int,
        vocabulary: int,
        prompt_tokens: int,
        began_ns: int,
        *,
        remote: bool = False,
    ) -> None:
        self._slot = slot
        self._session_id = session_id
        self._vocabulary = vocabulary
        self._prompt_tokens = prompt_tokens
        self._began_ns = began_ns
        self._remote = remote
        self._next_step = 0
        self._told: Tree | None = None

    def look(self, now_ns: int) -> list[Event]:
        """The events since the last look, in order."""
        steps, self._next_step = self._slot.steps(self._session_id, self._next_step)
        events = [self._step(step) for step in steps]
        tree = self._slot.tree(self._session_id, self._vocabulary, remote=self._remote)
        if tree is not None and (change := self._change(tree)):
            events.append({"us": self._us(now_ns)} | change)
        return events

    def _step(self, step: Step) -> Event:
        """The event of a target pass; its tokens stand at its place of the text."""
        committed = self._slot.output(step.behind, step.behind + step.committed)
        candidates = step.candidates
        return {
            "us": self._us(step.committed_ns),
            "queried_us": self._us(step.queried_ns),
            "behind": step.behind,
            "candidates": list(map(list, zip(candidates.tokens, candidates.parents, strict=True))),
            "drafted": min(step.drafted, len(candidates)),
            "accepted": step.accepted,
            "tokens": committed.tolist(),
        }

    def _change(self, tree: Tree) -> Event | None:
        """The whole tree, or its nodes that were not reported yet; None if there are none."""
        tree = _first_nodes(tree, MOST_NODES)
        told, known = self._told, 0
        if told is not None and told.root_length == tree.root_length:
            known = len(told.token)
            if tree.token[:known] != told.token or tree.parent[:known] != told.parent:
                known = 0
            elif len(tree.token) == known:
                return None
        self._told = tree
        nodes = zip(tree.token, tree.parent, tree.score, strict=True)
        return {
            "behind": tree.root_length - self._prompt_tokens,
            "known": known,
            "nodes": [[node, above, round(finite(score), 3)] for node, above, score in nodes][
                known:
            ],
        }

    def _us(self, at_ns: int) -> int:
        return max(0, at_ns - self._began_ns) // 1000


def _first_nodes(tree: Tree, count: int) -> Tree:
    if len(tree.token) <= count:
        return tree
    return Tree(tree.root_length, tree.token[:count], tree.parent[:count], tree.score[:count])
