"""`bench publishing`: what it costs a target on OpenVINO to publish its hidden states.

Two loads of one decoder differ by more than the states cost. So one graph holds the decoder of one
row twice, over the same weights: without taps and with them. Their passes alternate, and those
with taps also copy the states into the ring of a slot.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from rich.console import Console

from bench import terminal
from card.cache import Geometry, Pool
from card.engines import SequenceTokens
from card.engines.architecture import read_architecture
from card.engines.openvino import graph
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.runner import Runner
from card.engines.options import EngineOptions
from card.settings import load_settings
from card.speculation.drafters.heads.formats import EAGLE3, HeadConfig

_PLAIN, _TAPPED = 1, 2
"""The decoders, by the numbers of rows that the engine takes them for."""
_TEXT, _PLACES = 128, 512
_QUADS = 1000
"""A quad is two passes with taps and two without."""
_RESAMPLES = 2000
Times = NDArray[np.float64]
"""[quads, kinds, passes] milliseconds"""


def publishing(
    settings_file: terminal.SettingsFile = None,
) -> None:
    """Measure passes of the target with and without an EAGLE-3 head's three taps."""
    console = Console()
    with terminal.said_in_one_line():
        settings = load_settings(settings_file)
        a = read_architecture(settings.target.path)
        taps = HeadConfig(EAGLE3, {}, None).taps(a.layers)
        options = EngineOptions(
            context=1024, sessions=1, paths=4, threads=1, graph_rows=(_PLAIN, _TAPPED),
            compressed=True, taps=taps,
        )  # fmt: skip
        with patch.object(graph, "_fix_shapes", _decoder_of_one_row):
            engine = OpenVinoEngine.load(settings.target.path, options)
        wall, own = _times(engine, len(taps) * a.hidden)
    for name, times in (("time", wall), ("processor time", own)):
        ratio, low, high = interval(np.log(times[:, 1] / times[:, 0]).mean(axis=1))
        console.print(
            f"{name}: {np.median(times[:, 0]):.2f} ms without states, with them {ratio:.4f} times "
            f"that, 95 % [{low:.4f}, {high:.4f}]",
            soft_wrap=True,
        )


_fix_shapes: Callable[[ov.Model, int], None] = graph._fix_shapes


def _decoder_of_one_row(body: ov.Model, rows: int) -> None:
    if rows == _PLAIN:
        for result in body.get_results():
            if result.output(0).any_name == "states":
                body.remove_result(result)
    _fix_shapes(body, 1)


def _times(engine: OpenVinoEngine, numbers: int) -> tuple[Times, Times]:
    """Wall time and processor time of quads: plain, tapped, tapped, plain, and the reverse."""
    decoders: Any = engine.model.decoders
    pages = engine._kv.pages_of_lane
    runners = [
        Runner(decoders[rows], pages, None, only_ranks=False, taps=rows == _TAPPED)
        for rows in (_PLAIN, _TAPPED)
    ]
    for runner in runners:
        runner._rows = 1
    session = engine.open_session()
    wall, own = np.zeros((_QUADS, 2, 2)), np.zeros((_QUADS, 2, 2))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        geometry = Geometry(1, 64, 256, _PLACES, 1, 1, state_tokens=_PLACES, state_numbers=numbers)
        pool = Pool.create(Path(home), os.getpid(), geometry)
        slot = pool.target_slot(0)
        slot.adopt(pool.new_session_id())

        def run(kind: int, token: int, *, keep: bool = False) -> tuple[float, float]:
            began, began_own = time.perf_counter(), time.process_time()
            batch = [SequenceTokens(session, [token])]
            plan = engine._pages.plan(batch)
            (logits,) = runners[kind].run(plan, batch, 1, needed=1, exactly=False)
            if logits.states is not None and not keep:
                slot.publish_states(_TEXT, logits.states[[0]])
            engine.commit_kv(session, [0] if keep else [])
            return time.perf_counter() - began, time.process_time() - began_own

        for token in range(_TEXT):
            run(0, token, keep=True)
        for quad in range(_QUADS):
            done = [0, 0]
            for kind in (0, 1, 1, 0) if quad % 2 else (1, 0, 0, 1):
                place = quad, kind, done[kind]
                wall[place], own[place] = run(kind, 5)
                done[kind] += 1
        pool.unlink()
    return wall * 1e3, own * 1e3


def interval(logarithms: NDArray[np.float64]) -> tuple[float, float, float]:
    """The median quotient and its 95 % interval: bootstrap over the quads."""
    random = np.random.default_rng(0)
    drawn = random.integers(0, len(logarithms), (_RESAMPLES, len(logarithms)))
    medians = np.median(logarithms[drawn], axis=1)
    middle, low, high = np.exp([np.median(logarithms), *np.percentile(medians, (2.5, 97.5))])
    return float(middle), float(low), float(high)
