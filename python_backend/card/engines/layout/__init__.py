"""Where rows stand: how the rows of sessions become one pass over lanes of a KV cache.

`chains.ChainLayout` (target) puts every root-to-leaf path of a tree into a lane of its own, at its
absolute positions; `pages.PageLayout` (target) the one path of a pass, for attention that looks up
every row's places by itself. `branches.BranchLayout` (draft) does so with a growing tree, whose
branches have pages of their own; `trees.TreeLayout` (draft) masks a tree behind the prefix.
`paths.PathLayout` (either, on a device) keeps it there too, and says of every row which places it
looks at. All are pure NumPy and know no engine.
"""

from card.engines.layout.branches import BranchLayout
from card.engines.layout.chains import ChainLayout
from card.engines.layout.pages import PageLayout
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
