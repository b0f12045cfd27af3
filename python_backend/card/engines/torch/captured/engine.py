"""The torch engine on a device: one copy there, one replay, one read back per pass."""

from __future__ import annotations

import logging
import subprocess
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from card.engines.architecture import Architecture, read_architecture
from card.engines.families import FAMILIES
from card.engines.interface import (
    EngineError,
    Logits,
    RankedIds,
    Ranking,
    SequenceTokens,
    own_rows,
    wanted_rows,
)
from card.engines.options import MAX_PASS_ROWS, EngineOptions, check_context, taps_of
from card.engines.sessions import SHORT, SessionEngine
from card.engines.torch.captured.device import (
    Devices,
    check_fits,
    choose_device,
    choose_dtype,
    need_of,
)
from card.engines.torch.captured.static import StaticPass
from card.engines.torch.logits import TensorLogits, rank
from card.engines.torch.weights import load_weights

if TYPE_CHECKING:  # Triton need not be there: that is refused by name.
    from card.engines.torch.captured.kernels.decoder import KernelDecoder
    from card.engines.torch.captured.kernels.passes import PathShape

log = logging.getLogger(__name__)

_EXAMINATION_S = 20.0
"""A device's calibration is not remembered, so every load of a large model would wait for them."""


class CapturedEngine(SessionEngine):
    """Implements `card.engines.interface.Engine` with passes of few fixed shapes.

    On a processor Triton's interpreter runs the kernels, which is for tests.

    most_captured  shapes kept; the one that was not needed for longest makes room. Each takes some
                   MiB
    """

    def __init__(
        self, decoder: KernelDecoder, options: EngineOptions, most_captured: int = 96
    ) -> None:
        from card.engines.torch.captured.kernels.passes import PathPasses
        from card.engines.torch.captured.ranking import DeviceRanking

        self._decoder = decoder
        self._most_captured = most_captured
        self._fixed = PathPasses(decoder.architecture, decoder.dtype, decoder.device, options)
        super().__init__(decoder.architecture, options, self._fixed.kv, self._fixed.layout)
        self.dtype = decoder.dtype
        self.device = decoder.device
        on_device = self.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_device else None
        self._logits: dict[int, Tensor] = {}
        self._tapped: dict[int, Tensor] = {}
        self._passes: OrderedDict[PathShape, StaticPass] = OrderedDict()
        self._ranking = DeviceRanking(self.device, self._pool)

    @classmethod
    def load(
        cls, directory: Path, options: EngineOptions, devices: Devices | None = None
    ) -> CapturedEngine:
        """Load a Hugging Face directory onto `options.device`.

        Raises `EngineError` before anything is loaded if the device is not there, runs no kernels,
        does not compute in the dtype or has too little free memory; later for files that do not
        fit, and for kernels that do not compile.
        """
        devices = devices or Devices.seen()
        device = choose_device(options.device, devices)
        dtype = choose_dtype(options.dtype, device)
        architecture = read_architecture(directory)
        _check_family(directory, architecture, options)
        check_context(directory, architecture, options)
        if options.threads:
            torch.set_num_threads(options.threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            need = need_of(architecture, options, dtype.itemsize)
            free, _ = torch.cuda.mem_get_info(device)
            check_fits(directory, str(device), need, options, free)
        from card.engines.torch.captured.kernels.decoder import KernelDecoder
        from card.engines.torch.captured.kernels.products import SkinnyLinear

        count = _multiprocessors(device)
        began_s = time.monotonic()
        weights = load_weights(
            directory,
            architecture,
            dtype,
            lambda weight, bias: SkinnyLinear(weight, bias, count),
            device,
        )
        log.info("%s: read onto %s in %.1f s", directory, device, time.monotonic() - began_s)
        positions = options.context + MAX_PASS_ROWS
        taps = taps_of(architecture, options)
        decoder = KernelDecoder(architecture, weights, dtype, device, positions, taps)
        engine = cls(decoder, options)
        engine._try_kernels()
        return engine

    def _try_kernels(self) -> None:
        """Run one pass with few buffers. Raises `EngineError` where the kernels do not compile."""
        from triton.errors import TritonError

        trial = self.reconfigured(replace(self.options, sessions=1, kept_tokens=0))
        try:
            trial.forward([SequenceTokens(trial.open_session(), [0])])
        except EngineError:
            raise
        except (TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            raise EngineError(
                f"device: {self.device} is set and the kernels do not run there "
                f"({type(error).__name__}: {error}); Triton compiles each at its first run, which "
                "takes a C compiler and room for its cache (TRITON_CACHE_DIR): provide both, or "
                "set device: cpu"
            ) from error

    def reconfigured(self, options: EngineOptions) -> CapturedEngine:
        """The same weights with other buffers (used while calibrating)."""
        return CapturedEngine(self._decoder, options)

    @property
    def variants(self) -> tuple[EngineOptions, ...]:
        """The kernels have one way to run; no padding is tried."""
        return (self.options,)

    @property
    def costed_rows(self) -> tuple[int, ...]:
        """The first and the last of those that are padded to the same."""
        return (1, 16, 17, 32, 33, 64)

    @property
    def examination_s(self) -> float:
        return super().examination_s if self.device.type == "cpu" else _EXAMINATION_S

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        # A captured pass attends its lanes alike, so long chunks do not share one with short rows.
        short = [index for index, rows in enumerate(batch) if len(rows.tokens) <= SHORT]
        parts = [[index] for index in range(len(batch)) if index not in short]
        if short:
            parts.append(short)
        found: dict[int, Logits] = {}
        with torch.inference_mode(), self._current():
            for part in parts:
                logits = self._forward([batch[index] for index in part])
                found.update(zip(part, logits, strict=True))
        return [found[index] for index in range(len(batch))]

    @property
    def runs_ahead(self) -> bool:
        return True

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        """What each pass is about is known before the one ahead of it has ended, but for its token,
        which the device hands on. So all are queued at once, and waited for once."""
        steps = [
            SequenceTokens(rows.session, [0], [at], ranking=ranking)
            for at, ranking in enumerate(rankings, entry)
        ]
        if not self._ranking.takes([rows, *steps]):
            return super().forward_chain(rows, rankings, entry)
        with torch.inference_mode(), self._current():
            asked = [self._ranking.ask([rows], self._queue([rows]).logits)]
            for step in steps:
                logits = self._queue([step], token=asked[-1].likeliest).logits
                asked.append(self._ranking.ask([step], logits))
            return [found for each in self._ranking.answers(asked) for found in each]

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        with torch.inference_mode():
            super().commit_kv(session, confirmed, surviving)

    def _current(self) -> AbstractContextManager[object]:
        """A thread launches kernels on its own current device, whatever their arrays lie on."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _forward(self, batch: Sequence[SequenceTokens]) -> list[Logits]:
        queued = self._queue(batch)
        if queued.logits is not None and self._ranking.takes(batch):
            (found,) = self._ranking.answers([self._ranking.ask(batch, queued.logits)])
            return list(found)
        return self._read(batch, queued)

    def _queue(self, batch: Sequence[SequenceTokens], token: Tensor | None = None) -> StaticPass:
        """Queue a pass, which will write its logits and hidden states.

        token  [1] int32 on the device, the token of its only row; None: it is in the batch
        """
        this = self._fixed.layout.plan(batch)
        self._fixed.kv.allocate()
        static = self._pass_of(self._fixed.shape_of(this))
        static.run(this, token)
        return static

    def _pass_of(self, shape: PathShape) -> StaticPass:
        """Made when it is first needed."""
        if shape not in self._passes:
            if len(self._passes) == self._most_captured:
                self._passes.popitem(last=False)
            self._passes[shape] = self._make_pass(shape)
        self._passes.move_to_end(shape)
        return self._passes[shape]

    def _make_pass(self, shape: PathShape) -> StaticPass:
        logits = None
        if shape.logits:
            # Shared by all shapes with so many: they are read before the next pass begins.
            if shape.logits not in self._logits:
                self._logits[shape.logits] = torch.empty(
                    shape.logits, self.vocabulary, dtype=torch.float32, device=self.device
                )
            logits = self._logits[shape.logits]
        tapped = None
        if taps := self._decoder.taps:
            if shape.rows not in self._tapped:
                self._tapped[shape.rows] = torch.empty(
                    shape.rows,
                    len(taps) * self.architecture.hidden,
                    dtype=torch.bfloat16,
                    device=self.device,
                )
            tapped = self._tapped[shape.rows]
        return StaticPass(shape, self._fixed, self._decoder, logits, tapped, self._pool)

    def _read(self, batch: Sequence[SequenceTokens], done: StaticPass) -> list[Logits]:
        """Copy to the host what was asked for, and wait for it once."""
        found: list[Logits] = []
        logits = done.logits
        for own, (rows, at) in zip(own_rows(batch), wanted_rows(batch), strict=True):
            states = None if done.tapped is None else _to_host(done.tapped[own])
            if logits is None or not rows.wanted:
                found.append(TensorLogits(torch.empty(0, self.vocabulary), states=states))
            elif rows.ranking is None:
                found.append(TensorLogits(_to_host(logits[at]), states=states))
            else:
                ids, log_probabilities = rank(logits[at], rows.ranking)
                found.append(RankedIds(_to_host(ids).numpy(), _to_host(log_probabilities).numpy()))
        is_read = logits is not None or done.tapped is not None
        if is_read and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return found


def _multiprocessors(device: torch.device) -> int:
    """A processor, which interprets kernels for tests, has so many that sums are split."""
    if device.type == "cpu":
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count


def _to_host(values: Tensor) -> Tensor:
    """A copy on the host: complete on return from a processor, queued from a device."""
    if values.device.type == "cpu":
        return values.clone()
    # Pinned memory is cached by torch, and only a pinned copy is queued without waiting.
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def _check_family(directory: Path, architecture: Architecture, options: EngineOptions) -> None:
    """Refuse what the kernels do not compute. Raises `EngineError`."""
    if not architecture.is_plain:
        allowed = ", ".join(name for name, family in FAMILIES.items() if family.on_cuda)
        raise EngineError(
            f"{directory}: a model of the family {architecture.family} with these layers does not "
            f"run on CUDA here; allowed: {allowed}, with silu and a rotary embedding of the kinds "
            "default, linear or llama3; set device: cpu and engine: openvino"
        )
    window = min(architecture.windows, default=options.context)
    if options.context > window:
        raise EngineError(
            f"{directory}: on CUDA attention does not slide; "
            f"set limits.context_tokens to at most {window}, or device: cpu and engine: openvino"
        )
