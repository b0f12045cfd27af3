"""The candidate cache: a pool of slots in shared memory, and what is asked of a tree.

`layout`  which bytes mean what, and who alone writes them
`pool`    the shared file: created by `card`, found by the engines, locked
`header`  its first bytes: session ids, heartbeats, what engines and `preprocessing` count
`home`    the directory that it lies in, which is private, and how what is left over is swept
`request` what a session decodes and how
`slot`    what every role may read; `card_slot` opens and closes, `target_slot` commits,
          `draft_slot` publishes trees and `remote_slot` the chains of devices
`record`  a slot's fields, quick to read and write; `stopwatch` adds up times in them
`tree`    validated snapshots of a draft's tree; `chain` the same of what a device sent
`watch`   which slots were opened or closed
`bell`    wakes engines when that happens, and `card` when a session begins or ends
`likeliest` likeliest ids of a position in a word each
`steps`   what the target's passes asked and got, for who follows them
`query`   descend along what is committed, then the best chain or subtree
"""

from card.cache.bell import Bell
from card.cache.card_slot import CardSlot, SlotCounters
from card.cache.draft_slot import DraftSlot
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
    EngineState,
    Finish,
    Geometry,
    SlotState,
)
from card.cache.pool import Pool, PoolError
from card.cache.query import (
    LEAST_CHANCE,
    NO_CANDIDATES,
    Candidates,
    best_chain,
    best_subtree,
    descend,
)
from card.cache.remote_slot import RemoteSlot
from card.cache.request import ANY, SlotRequest, choice_words, digest_of
from card.cache.steps import Step
from card.cache.target_slot import DraftProgress, TargetSlot
from card.cache.tree import ROOT, Tree, follow
from card.cache.watch import SlotWatch
