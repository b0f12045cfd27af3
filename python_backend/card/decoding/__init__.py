"""The target's side of CARD: query the cache, verify in one pass, correct, commit.

`loop`        all sessions, one pass after the other
`session`     one of them: its query, its commits, its KV cache
`walk`        verify and correct
`rows`        how much of a chain is worth verifying
`rest`        when one session's draft rests; `crowd`, that of many at once
`gain`        what one session gains from its draft; `judgement`, what follows from that
`experience`  what earlier sessions tell of a fresh one's draft
`patience`    how long a pacing that waits for the draft does so
"""

from card.decoding.experience import Experience
from card.decoding.judgement import Judgement
from card.decoding.loop import TargetLoop, TargetTimes
from card.decoding.rows import Acceptance, RowPlan, ideal_tokens
from card.decoding.walk import Verdict, verify

__all__ = [
    "Acceptance",
    "Experience",
    "Judgement",
    "RowPlan",
    "TargetLoop",
    "TargetTimes",
    "Verdict",
    "ideal_tokens",
    "verify",
]
