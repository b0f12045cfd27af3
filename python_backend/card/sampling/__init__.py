"""One way to choose a token.

A token at temperature t is ``argmax(log_softmax(processed / t) + gumbel)``, where the noise is a
pure function of (seed, absolute position, token id). Nothing else enters: not the batch, not the
step, not the draft. Greedy is the same code without noise. Verification therefore needs no
acceptance rule: the target samples, and a candidate is accepted if it is that very token.
"""

from card.sampling.choice import (
    InvalidLogitsError,
    Likeliest,
    banned_ids,
    biased,
    likeliest,
    log_probability,
    sample,
)
from card.sampling.noise import LARGEST_NOISE, PositionNoise, gumbel
from card.sampling.parameters import History, SamplingParameters
from card.sampling.ranking import rank_candidates
