"""FLy: a candidate that the target would not have chosen is accepted if the target is unsure and
agrees with the candidates behind it (arXiv 2511.22972). This rule is not lossless.

At a mismatch the entropy of the target's distribution, as a share of the largest possible entropy,
must reach θ. Then the next W candidates must all be the target's own choices. Otherwise the
mismatch is corrected, and verification ends there.

The rule applies to greedy texts without a guide. Other texts are verified exactly; so are tokens
that end a text, that the request forbids, or whose logits it lowers by a bias.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from card.cache import Candidates, SlotRequest
from card.sampling import History, banned_ids, sample
from card.speculation.acceptance.exact import AcceptanceConfig, Exact, TargetRows, children_of


class Loose(Exact):
    """The entropy gate and the deferred window."""

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
        lowered = (biased for biased, bias in parameters.logit_bias if bias < 0)
        forbidden = (*parameters.end_ids, *banned_ids(history, parameters), *lowered)
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
    """Entropy of the softmax of a row [vocabulary], from 0 (sure) to 1 (all tokens equal)."""
    shifted = logits.astype(np.float64) - float(logits.max())
    weights = np.exp(shifted)
    total = float(weights.sum())
    # An impossible token adds nothing; 0 times minus infinity would give NaN.
    weighted = float((weights * np.maximum(shifted, -1e6)).sum()) / total
    return (math.log(total) - weighted) / math.log(len(logits))
