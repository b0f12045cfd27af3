"""Layouts turn the rows of sessions into one pass over lanes of a KV cache.

`pages`  every row has a table of pages (OpenVINO): paths of a tree have pages of their own
`paths`  trees lie behind the prefix, and every row has the places of its path (torch)

Both are pure NumPy and independent of an engine.
"""

from card.engines.layout.interface import (
    EXTENT_MULTIPLE,
    SHORT,
    KeyValueBuffers,
    KeyValueStore,
    Layout,
    rounded_up,
)
from card.engines.layout.pages import PagedPass, PageLayout
from card.engines.layout.paths import PathLayout, PathPass, PathTile, SessionPaths, path_tiles
