"""Passes over paths: rows of sessions become tiles of attention, in arrays of a fixed shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.layout import Pass, PathLayout, Scattered, SessionPaths
from card.engines.options import MAX_PASS_ROWS, EngineOptions
from card.engines.sessions import kept_lanes, kv_size
from card.engines.torch.captured.kernels.attention import rows_per_tile
from card.engines.torch.captured.kernels.decoder import KernelDecoder
from card.engines.torch.captured.kernels.pages import PagedKeyValueCache
from card.engines.torch.captured.kernels.shapes import (
    PathBuffer,
    PathShape,
    padded_rows,
    padded_width,
)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows of one session along one path. rows: of the session, from 0."""

    session: SessionPaths
    base: int
    rows: list[int]

    @property
    def path(self) -> NDArray[np.int64]:
        last = self.rows[-1]
        return self.session.places[last, : int(self.session.depths[last]) + 1]


def _tiles(paths: list[SessionPaths], most: int) -> list[_Tile]:
    """All rows of a pass, `most` at a time where each follows the one before."""
    found: list[_Tile] = []
    base = 0
    for session in paths:
        of_session: list[_Tile] = []
        ending: dict[int, _Tile] = {}  # tiles with room, by their last row
        for row, parent in enumerate(session.follows.tolist()):
            tile = ending.pop(parent, None)
            if tile is None:
                tile = _Tile(session, base, [])
                of_session.append(tile)
            tile.rows.append(row)
            if len(tile.rows) < most:
                ending[row] = tile
        found += of_session
        base += len(session.follows)
    return found


class PathPasses:
    """Implements `captured.arithmetic.Arithmetic` with kernels."""

    def __init__(self, decoder: KernelDecoder, options: EngineOptions, dtype: torch.dtype) -> None:
        a = decoder.architecture
        # Lanes of branches are not needed: a path leads where its keys lie.
        _, places = kv_size(options)
        pending = max(options.pending, MAX_PASS_ROWS)
        lanes = options.sessions + kept_lanes(options)
        self.kv = PagedKeyValueCache(a, lanes, places, dtype, decoder.device)
        self.layout = PathLayout(self.kv, options.sessions, pending)
        self._decoder = decoder
        self._tile = rows_per_tile(a.heads, a.kv_heads)

    def shape_of(self, this: Pass) -> PathShape:
        """The shape that the pass is padded to."""
        paths = _paths_of(this)
        rows = padded_rows(len(this.tokens))
        of_chain = -(-rows // self._tile)
        tiles = len(_tiles(paths, self._tile))
        wanted = len(this.tokens) if this.logit_rows is None else len(this.logit_rows)
        return PathShape(
            rows=rows,
            tiles=of_chain if tiles <= of_chain else rows,
            tile=self._tile,
            width=padded_width(max(session.places.shape[1] for session in paths)),
            logits=padded_rows(wanted) if wanted else 0,
        )

    def arrays(self, shape: PathShape, device: torch.device, *, pinned: bool) -> PathBuffer:
        return PathBuffer.empty(shape, device, pinned=pinned)

    def forward(self, arrays: PathBuffer, logits: Tensor | None) -> None:
        self._decoder.forward(arrays, self.kv, logits)

    def fill(self, arrays: PathBuffer, this: Pass) -> None:
        """Write a pass and its padding into arrays on the host."""
        paths = _paths_of(this)
        destination = this.destination
        assert isinstance(destination, Scattered)
        count = len(this.tokens)
        numbers = arrays.numbers

        def put(name: str, values: NDArray[np.int64], padding: int = 0) -> None:
            array = numbers[name]
            array[: len(values)] = values
            array[len(values) :] = padding

        put("tokens", this.tokens)
        put("positions", this.positions)
        put("slots", self.kv.slots(destination.lane, destination.place), self.kv.refuse)
        put("logit_rows", np.arange(count) if this.logit_rows is None else this.logit_rows)
        tiles, lanes, starts, places = (
            numbers[name] for name in ("tiles", "lanes", "starts", "paths")
        )
        tiles.fill(-1)
        for number, tile in enumerate(_tiles(paths, self._tile)):
            tiles[number, : len(tile.rows)] = np.array(tile.rows) + tile.base
            lanes[number] = tile.session.lane
            starts[number] = tile.session.start
            path = tile.path
            places[number, : len(path)] = path


def _paths_of(this: Pass) -> list[SessionPaths]:
    if this.paths is None:
        raise ValueError("a pass over paths needs the paths of its rows")
    return this.paths
