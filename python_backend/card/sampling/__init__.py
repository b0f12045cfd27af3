"""One way to choose a token.

A token at temperature t is ``argmax(log_softmax(processed / t) + gumbel)``, where the noise is a
pure function of (seed, absolute position, token id). Nothing else enters: not the batch, not the
step, not the draft. Greedy is the same code without noise. Verification therefore needs no
acceptance rule: the target samples, and a candidate is accepted if it is that very token.
"""

from card.sampling.choice import (
    History,
    InvalidLogitsError,
    SamplingParameters,
    banned_ids,
    biased,
    sample,
)
from card.sampling.filters import Likeliest, likeliest, log_probability
from card.sampling.noise import LARGEST_NOISE, gumbel
from card.sampling.ranking import rank_candidates
