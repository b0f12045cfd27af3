"""How far a draft's next-token distribution lies from its target's, by DistillSpec's measures.

Each function takes log-probabilities [..., vocab], the target's first, and returns one value in
[...]: nats, but for the total variation distance, which lies between 0 and 1.
(DistillSpec: https://arxiv.org/abs/2310.08461)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from torch import Tensor


class Divergence(str, Enum):
    """The divergence that distillation lowers."""

    FORWARD_KL = "forward_kl"
    REVERSE_KL = "reverse_kl"
    JSD = "jsd"
    TVD = "tvd"

    def between(self, target: Tensor, draft: Tensor) -> Tensor:
        """The divergence at each position."""
        return _MEASURES[self](target, draft)


def kl(first: Tensor, second: Tensor) -> Tensor:
    """The Kullback-Leibler divergence from the first distribution to the second."""
    return (first.exp() * (first - second)).sum(dim=-1)


def jensen_shannon(target: Tensor, draft: Tensor) -> Tensor:
    """The mean of both distributions' KL to the mixture of their halves."""
    mixture = target.logaddexp(draft) - math.log(2)
    return (kl(target, mixture) + kl(draft, mixture)) / 2


def total_variation(target: Tensor, draft: Tensor) -> Tensor:
    """The share of tokens that speculative sampling by rejection would refuse."""
    return (target.exp() - draft.exp()).abs().sum(dim=-1) / 2


_MEASURES: dict[Divergence, Callable[[Tensor, Tensor], Tensor]] = {
    Divergence.FORWARD_KL: kl,
    Divergence.REVERSE_KL: lambda target, draft: kl(draft, target),
    Divergence.JSD: jensen_shannon,
    Divergence.TVD: total_variation,
}
