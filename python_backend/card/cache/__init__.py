"""The candidate cache: a pool of slots in shared memory.

`layout`   the fields of the pool, and the one role that writes each
`pool`     the shared file and its directory: `card` creates and locks it, the engines find it
`header`   its first bytes, and the bells that wake the processes
`slot`     the request of a session, and the view with which every role reads a slot
`tree`     how the draft publishes candidates, and the checked copy that the target takes
`chains`   candidates that a device sends
`commits`  how the target commits tokens, and how `card` opens, reads and closes a slot
`reports`  the target's steps and likeliest ids, where a request asks for them
`states`   the target's hidden states, where a draft reads them
"""

from card.cache.chains import RemoteSlot
from card.cache.commits import CardSlot, SlotCounters, TargetSlot
from card.cache.header import Bell, digest_of
from card.cache.layout import (
    DRAFT_COUNTERS,
    ENGINES,
    LONGEST_CHAIN,
    MAX_END_IDS,
    MAX_ROWS,
    NO_SALT,
    SALT_BYTES,
    STEPS_KEPT,
    TARGET_COUNTERS,
    WAYS,
    EngineState,
    Finish,
    Geometry,
    SlotState,
)
from card.cache.pool import Pool, PoolError
from card.cache.reports import Step
from card.cache.slot import ANY, SlotRequest, SlotWatch, choice_words
from card.cache.states import NO_STATES, States
from card.cache.tree import (
    LEAST_CHANCE,
    NO_CANDIDATES,
    ROOT,
    Candidates,
    DraftProgress,
    DraftSlot,
    Tree,
    descend,
    follow,
    num_agreed,
)
