"""The KV cache of an engine's sessions: in pages or under masks, as its options say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from card.engines.architecture import Architecture
from card.engines.layout import BranchLayout, Layout, PageLayout
from card.engines.openvino.compiled import kv_type
from card.engines.openvino.inputs import Inputs
from card.engines.openvino.masked.cache import KeyValueCache
from card.engines.openvino.masked.feed import MaskedFeed
from card.engines.openvino.paged.cache import PAGE, PagedCache, PageMemory
from card.engines.openvino.paged.feed import PagedFeed
from card.engines.openvino.runner import Feed
from card.engines.openvino.shapes import Padding
from card.engines.options import EngineOptions
from card.engines.sessions import kept_lanes, kv_size, layout_under_masks, most_pending

SPARE_SESSIONS = 2
"""Sessions of an examination while the engine serves."""

Cache = KeyValueCache | PagedCache
MakeFeed = Callable[[Inputs, Padding], Feed]


def make_cache(
    architecture: Architecture, options: EngineOptions, pages: PageMemory | None, first_page: int
) -> tuple[Cache, Layout, MakeFeed]:
    """A cache, where rows stand in it, and what tells a graph so.

    pages       if attention is paged
    first_page  of those, which the cache has
    """
    lanes, places = kv_size(options)
    lanes += kept_lanes(options)
    if pages is None:
        kv = KeyValueCache(architecture, lanes, places, kv_type(options))
        return kv, layout_under_masks(kv, options), partial(MaskedFeed, architecture)
    paged = PagedCache(pages, lanes, places, first_page, _branch_pages(options))
    make_feed = partial(PagedFeed, paged)
    if options.grows_trees:
        return paged, BranchLayout(paged, options.sessions, most_pending(options)), make_feed
    return paged, PageLayout(options.sessions, options.row_multiple), make_feed


def pages_needed(options: EngineOptions) -> int:
    """Pages of an engine of these options, with those for an examination beside it."""
    spare = 0 if options.grows_trees else _spare_pages(options)
    return first_spare_page(options) + spare


def first_spare_page(options: EngineOptions) -> int:
    """Behind those of the engine's own sessions."""
    lanes, places = kv_size(options)
    return (lanes + kept_lanes(options)) * places // PAGE + _branch_pages(options)


def _spare_pages(options: EngineOptions) -> int:
    _, places = kv_size(options)
    return SPARE_SESSIONS * places // PAGE


def _branch_pages(options: EngineOptions) -> int:
    """Every pending entry of a growing tree may need a page."""
    return options.sessions * most_pending(options) if options.grows_trees else 0
