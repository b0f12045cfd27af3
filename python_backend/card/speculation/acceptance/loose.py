"""FLy: a candidate that the target would not have chosen is kept where the target was unsure and
both agree again behind it (arXiv 2511.22972). Not lossless.

At a mismatch the entropy of the target's distribution, as a share of the largest there can be, must
reach θ. Then the next W candidates must all be the target's own choices. A mismatch that fails is
corrected, and verification ends there.

The rule is about the likeliest token. Texts that are drawn, or held to a guide, are verified
exactly; so are tokens that end a text or that the request forbids.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from card.cache import Candidates, SlotRequest
from card.sampling import History, banned_ids, sample
from card.speculation.acceptance.exact import Exact, children_of
from card.speculation.acceptance.interface import AcceptanceConfig, TargetRows


class Loose(Exact):
    """Entropy gate and deferred window."""

    lossless: ClassVar[bool] = False

    def __init__(self, config: AcceptanceConfig) -> None:
        super().__init__(config)
        self._least_entropy = config.loose_entropy
        self._window = config.loose_window

    def kept_mismatch(
        self,
        logits: TargetRows,
        candidates: Candidates,
        node: int,
        history: History,
        request: SlotRequest,
    ) -> int | None:
        parameters = request.parameters
        if not parameters.is_greedy or node not in candidates.parents:
            return None
        child = candidates.parents.index(node)  # the likeliest stands first
        token = candidates.tokens[child]
        forbidden = (*parameters.end_ids, *banned_ids(history, parameters))
        if token in forbidden:
            return None
        if normalised_entropy(logits.row(1 + node)) < self._least_entropy:
            return None
        length = len(history)
        history.append(token)
        agrees = self._agrees_behind(child, logits, candidates, history, request)
        history.cut(length)
        return child if agrees else None

    def _agrees_behind(
        self,
        node: int,
        logits: TargetRows,
        candidates: Candidates,
        history: History,
        request: SlotRequest,
    ) -> bool:
        """Whether the next W candidates below `node` are the target's choices; `history` grows."""
        children = children_of(candidates)
        for _ in range(self._window):
            choice = sample(logits.row(1 + node), history, request.parameters)
            child = children.get((node, choice))
            if child is None or choice in request.parameters.end_ids:
                return False
            history.append(choice)
            node = child
        return True


def normalised_entropy(logits: NDArray[np.float32]) -> float:
    """Of softmax of a row [vocabulary], from 0 (sure) to 1 (all tokens alike)."""
    shifted = logits.astype(np.float64) - float(logits.max())
    weights = np.exp(shifted)
    total = float(weights.sum())
    # A token that is impossible adds nothing, and 0 times minus infinity is no number.
    weighted = float((weights * np.maximum(shifted, -1e6)).sum()) / total
    return (math.log(total) - weighted) / math.log(len(logits))
