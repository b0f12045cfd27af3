"""What the tests of the TensorRT-LLM adapter share: a pool, its three views, and requests as the
runtime's loop shows them to the drafter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from card.cache import CardSlot, Geometry, Pool, SlotRequest
from card.engines.tensorrt_llm.runtime import import_tensorrt_llm
from card.sampling import SamplingParameters
from card.tensorrt_llm.bindings import Bindings
from card.tensorrt_llm.lookup import LookupSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))
from installation import install

VOCABULARY = 50
CANDIDATES = 4
BUDGET_S = 3600.0
"""The hook's own is about a machine that decodes, not about one that is busy with tests."""
GEOMETRY = Geometry(slots=4, nodes=64, prompt=64, output=64, bad_words=4, bad_word_tokens=16)
END_ID = 49


@dataclass
class EngineRequest:
    """A request in flight; `py_draft_tokens` is pre-filled with zeros as the loop does."""

    py_client_id: int | None
    tokens: list[int]
    is_dummy: bool = False
    is_attention_dp_dummy: bool = False
    is_cuda_graph_dummy: bool = False
    py_draft_tokens: list[int] = field(default_factory=lambda: [0] * CANDIDATES)
    py_request_id: int = 3
    """The engine's own number, which may well be another request's client id."""

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)


class Cache:
    """A pool, what `card` and the draft do to it, and the table of the Triton process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pool = Pool.create(directory, os.getpid(), GEOMETRY)
        self.bindings = Bindings.create(self.pool)

    @property
    def settings(self) -> LookupSettings:
        return LookupSettings(
            directory=self.directory,
            owner_pid=os.getpid(),
            server_pid=os.getpid(),
            geometry=GEOMETRY,
            vocabulary=VOCABULARY,
            candidates=CANDIDATES,
            budget_s=BUDGET_S,
        )

    def open(
        self,
        prompt: list[int],
        *,
        index: int = 0,
        client_id: int | None = None,
        max_tokens: int = 32,
        decoding: str = "card",
        end_ids: tuple[int, ...] = (END_ID,),
        min_tokens: int = 0,
        log_probabilities: bool = False,
        num_draft_tokens: int = 8,
    ) -> CardSlot:
        """A session that the target has adopted, bound to `client_id` if there is one."""
        slot, session_id = self.pool.card_slot(index), self.pool.new_session_id()
        parameters = SamplingParameters(end_ids=end_ids, min_tokens=min_tokens)
        slot.open(
            SlotRequest(
                np.array(prompt, np.int64),
                max_tokens,
                decoding,
                parameters,
                num_draft_tokens,
                log_probabilities=log_probabilities,
                drafter="tensorrt",
            ),
            session_id,
        )
        self.pool.target_slot(index).adopt(session_id)
        if client_id is not None:
            self.bindings.bind(index, client_id, session_id)
        return slot

    def draft(self, slot: CardSlot, root_length: int, chain: list[int]) -> None:
        """Publish a tree that is one chain of likely tokens."""
        self.pool.draft_slot(slot.index).replace(
            slot.session_id,
            root_length,
            np.array(chain, np.int64),
            np.arange(-1, len(chain) - 1),
            np.log(0.9) * np.arange(1, len(chain) + 1),
        )

    def output(self, slot: CardSlot) -> list[int]:
        tokens: list[int] = slot.output(0, slot.committed(slot.session_id)).tolist()
        return tokens


def scheduled(*requests: EngineRequest) -> Any:
    """What the loop hands to the drafter."""
    return SimpleNamespace(context_requests=[], generation_requests=list(requests))


@contextmanager
def standin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in, imported afresh as the product imports the runtime."""
    forget_standin()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # put back afterwards
    monkeypatch.syspath_prepend(str(install(folder / "standin")))
    try:
        yield import_tensorrt_llm([3])
    finally:
        forget_standin()


def forget_standin() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "tensorrt_llm" or name.endswith("tensorrt_llm.drafter"):
            del sys.modules[name]
