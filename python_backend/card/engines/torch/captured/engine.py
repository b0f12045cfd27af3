"""The torch engine on a device: one copy there, one replay, one read back per pass."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture, read_architecture
from card.engines.interface import Logits, Rows
from card.engines.layout import SHORT, Pass
from card.engines.options import MAX_PASS_ROWS, EngineOptions
from card.engines.sessions import (
    SessionEngine,
    check_context,
    kv_size,
    layout_under_masks,
)
from card.engines.torch.captured.decoder import CapturedDecoder
from card.engines.torch.captured.device import (
    Devices,
    choose_device,
    choose_dtype,
    forbid_varying_arithmetic,
)
from card.engines.torch.captured.graphs import Replayed
from card.engines.torch.captured.kv import DeviceKeyValueCache
from card.engines.torch.captured.memory import check_fits, need_of
from card.engines.torch.captured.shapes import PassBuffer, PassShape, fill, shape_of
from card.engines.torch.engine import TensorLogits
from card.engines.torch.linear import TiledLinear
from card.engines.torch.ranking import rank
from card.engines.torch.weights import load_weights

log = logging.getLogger(__name__)

MOST_CAPTURED = 96
"""Shapes kept; the one that was not needed for longest makes room. Each takes some MiB."""


class CapturedEngine(SessionEngine[DeviceKeyValueCache]):
    """Implements `card.engines.interface.Engine` with passes of few fixed shapes.

    On a processor it does the same without graphs, which is for tests: it pads every pass.
    """

    def __init__(
        self,
        architecture: Architecture,
        decoder: CapturedDecoder,
        options: EngineOptions,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        lanes, places = kv_size(options)
        kv = DeviceKeyValueCache(architecture, lanes, places, dtype, device)
        super().__init__(architecture, options, kv, layout_under_masks(kv, options))
        self.dtype = dtype
        self.device = device
        self._decoder = decoder
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._logits: dict[int, Tensor] = {}
        self._passes: OrderedDict[PassShape, StaticPass] = OrderedDict()

    @classmethod
    def load(cls, directory: Path, options: EngineOptions) -> CapturedEngine:
        """Load a Hugging Face directory onto `options.device`.

        Raises `EngineError` before anything is loaded if the device is not there, does not compute
        in the dtype or has too little free memory, and later for files that do not fit.
        """
        devices = Devices.seen()
        device = choose_device(options.device, devices)
        dtype = choose_dtype(options.dtype, device, devices)
        architecture = read_architecture(directory)
        check_context(directory, architecture, options)
        forbid_varying_arithmetic()
        if options.threads:
            torch.set_num_threads(options.threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            need = need_of(architecture, options, dtype.itemsize)
            free, _ = torch.cuda.mem_get_info(device)
            check_fits(directory, str(device), need, options, free)
        began_s = time.monotonic()
        weights = load_weights(directory, architecture, dtype, device, TiledLinear)
        log.info("%s: read onto %s in %.1f s", directory, device, time.monotonic() - began_s)
        positions = options.context + MAX_PASS_ROWS
        decoder = CapturedDecoder(architecture, weights, dtype, device, positions)
        return cls(architecture, decoder, options, dtype, device)

    def reconfigured(self, options: EngineOptions) -> CapturedEngine:
        """The same weights with other buffers (used while calibrating)."""
        return CapturedEngine(self.architecture, self._decoder, options, self.dtype, self.device)

    @property
    def variants(self) -> tuple[EngineOptions, ...]:
        # Below 16 rows a matrix unit idles; 64 are those of a prefill chunk.
        return tuple(replace(self.options, row_multiple=rows) for rows in (16, 32, 64))

    def forward(self, batch: Sequence[Rows]) -> list[Logits]:
        # A captured pass attends its lanes alike, so long chunks do not share one with short rows.
        short = [index for index, rows in enumerate(batch) if len(rows.tokens) <= SHORT]
        parts = [[index] for index in range(len(batch)) if index not in short]
        if short:
            parts.append(short)
        found: dict[int, Logits] = {}
        with torch.inference_mode():
            for part in parts:
                logits = self._forward([batch[index] for index in part])
                found.update(zip(part, logits, strict=True))
        return [found[index] for index in range(len(batch))]

    def keep(self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()) -> None:
        with torch.inference_mode():
            super().keep(session, confirmed, surviving)

    def _forward(self, batch: Sequence[Rows]) -> list[Logits]:
        this = self._layout.plan(batch)
        self._kv.allocate()
        static = self._pass_of(shape_of(this, self._kv, self.options.row_multiple))
        static.run(this)
        return self._read(batch, static.logits)

    def _pass_of(self, shape: PassShape) -> StaticPass:
        """Made when it is first needed."""
        if shape not in self._passes:
            if len(self._passes) == MOST_CAPTURED:
                self._passes.popitem(last=False)
            self._passes[shape] = self._make_pass(shape)
        self._passes.move_to_end(shape)
        return self._passes[shape]

    def _make_pass(self, shape: PassShape) -> StaticPass:
        logits = None
        if shape.logits:
            # Shared by all shapes with so many: they are read before the next pass begins.
            if shape.logits not in self._logits:
                self._logits[shape.logits] = torch.empty(
                    shape.logits, self.vocabulary, dtype=self.dtype, device=self.device
                )
            logits = self._logits[shape.logits]
        tile = self.options.row_multiple
        if tile == 1:
            tile = shape.attended
        return StaticPass(shape, self._decoder, self._kv, tile, logits, self._pool)

    def _read(self, batch: Sequence[Rows], logits: Tensor | None) -> list[Logits]:
        """Copy to the host what was asked for, and wait for it once."""
        found: list[Logits] = []
        at = 0
        for rows in batch:
            count = rows.wanted
            if logits is None or not count:
                found.append(TensorLogits(torch.empty(0, self.vocabulary)))
                continue
            wanted = logits[at : at + count]
            at += count
            if rows.ranking is None:
                found.append(TensorLogits(_to_host(wanted)))
            else:
                ids, log_probabilities = rank(wanted, rows.ranking)
                found.append(RankedRows(_to_host(ids), _to_host(log_probabilities)))
        if at and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return found


class StaticPass:
    """Passes of one shape: buffers that stay, and what is computed over them."""

    def __init__(
        self,
        shape: PassShape,
        decoder: CapturedDecoder,
        kv: DeviceKeyValueCache,
        tile: int,
        logits: Tensor | None,
        pool: Any,
    ) -> None:
        device = kv.device
        on_device = device.type == "cuda"
        self.logits = logits
        self._kv = kv
        self._host = PassBuffer.empty(shape, torch.device("cpu"), pinned=on_device)
        self._inputs = inputs = PassBuffer.empty(shape, device)
        self._copied = torch.cuda.Event() if on_device else None  # type: ignore[no-untyped-call]
        # No reference to itself: what is dropped must free its memory at once.
        self._replayed = Replayed(lambda: decoder.forward(inputs, kv, tile, logits), device, pool)

    def run(self, this: Pass) -> None:
        """Queue the pass: copy its arrays to the device, compute."""
        if self._copied is not None:
            self._copied.synchronize()  # the copy before this one, long since done
        fill(self._host, this, self._kv)
        self._inputs.bytes.copy_(self._host.bytes, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._replayed.run()


class RankedRows:
    """The likeliest ids of one session's rows [rows, count] and their log-probabilities."""

    def __init__(self, ids: Tensor, log_probabilities: Tensor) -> None:
        self._ids = ids
        self._log_probabilities = log_probabilities

    def row(self, index: int) -> NDArray[np.float32]:
        raise TypeError("only the likeliest ids of these rows were asked for (Rows.ranking)")

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._ids.numpy(), self._log_probabilities.numpy()


def _to_host(values: Tensor) -> Tensor:
    """A copy on the host: complete on return from a processor, queued from a device."""
    if values.device.type == "cpu":
        return values.clone()
    # Pinned memory is cached by torch, and only a pinned copy is queued without waiting.
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)
