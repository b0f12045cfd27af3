"""The candidate cache: a pool of slots in shared memory, and the queries of a tree.

`layout`        the fields of the pool, and the one role that writes each
`pool`          the shared file and its directory: `card` creates and locks it, the engines find it
`header`        its first bytes, and the bells that wake the processes
`request`       the request of a session: prompt, limits, sampling, speculation
`slot`          the view with which every role reads a slot; `card` opens and closes it
`engine_slots`  how the target commits, the draft publishes trees, and devices send chains
`tree`          validated snapshots of a tree, and the query
`reports`       the target's steps, likeliest ids and hidden states, where a request or a draft
                asks for them
"""

from card.cache.engine_slots import DraftProgress, DraftSlot, RemoteSlot, TargetSlot
from card.cache.header import Bell
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
from card.cache.reports import NO_STATES, States, Step
from card.cache.request import ANY, SlotRequest, choice_words, digest_of
from card.cache.slot import CardSlot, SlotCounters, SlotWatch
from card.cache.tree import (
    LEAST_CHANCE,
    NO_CANDIDATES,
    ROOT,
    Candidates,
    Tree,
    descend,
    follow,
    num_agreed,
)
