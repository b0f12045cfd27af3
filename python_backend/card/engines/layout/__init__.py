"""Where rows stand: how the rows of sessions become one pass over lanes of a KV cache.

`branches.BranchLayout` gives branches of trees pages of their own, for attention that looks up
every row's places by itself. `paths.PathLayout` (on a device) keeps trees behind the prefix, and
says of every row which places it looks at. Under masks `chains.ChainLayout` (target) puts every
root-to-leaf path into a lane of its own, at its absolute positions, and `trees.TreeLayout` (draft)
masks a tree behind the prefix. All are pure NumPy and know no engine.
"""

from card.engines.layout.branches import BranchLayout
from card.engines.layout.chains import ChainLayout
from card.engines.layout.paths import PathLayout
from card.engines.layout.plan import (
    EXTENT_MULTIPLE,
    HIDDEN,
    SHORT,
    AttentionGroup,
    Destination,
    KeyValueBuffers,
    KeyValueStore,
    Layout,
    Pass,
    RowPages,
    Scattered,
    SessionPaths,
    Stretch,
    doubled_up,
    rounded_up,
)
from card.engines.layout.trees import TreeLayout
