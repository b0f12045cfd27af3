"""The engines that are compared, the texts they read, and how a text is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.prompts import Prompt, read_prompts
from card.engines import Engine, SequenceTokens
from card.engines.options import Dtype, EngineOptions
from card.engines.torch.captured.engine import CapturedEngine
from card.engines.torch.engine import TorchEngine
from card.settings import REPOSITORY_ROOT
from model_files import model_at, model_files_of

CheckedEngine = CapturedEngine | TorchEngine

_PENDING = 512
"""Nodes of a draft's tree."""


@dataclass(frozen=True)
class Extent:
    """How much is read, written and timed.

    context      positions of a session
    read         tokens; their logits are compared
    texts        prompts that are continued
    tokens       written for each, where texts are compared
    timed        written for each, where they are timed
    rounds       measurements of a step, of which the median counts
    copied       bytes copied to measure bandwidth
    shape        of the random pair, a key of `aligned.SHAPES`
    rows         of the timed steps
    gamma        of draft-then-verify and PEARL
    streams      at once, where many are
    """

    context: int
    read: int
    texts: int
    tokens: int
    timed: int
    rounds: int
    copied: int
    shape: str
    rows: tuple[int, ...] = (1, 8, 32, 64)
    gamma: int = 4
    streams: int = 8


FULL = Extent(1152, 256, 4, 96, 192, 30, 1 << 30, "1b-8b")
TINY = Extent(300, 48, 1, 16, 16, 3, 1 << 25, "tiny", streams=2)
"""The extent on a processor, where the check only shows that the code runs."""


@dataclass(frozen=True)
class Pair:
    """Two checkpoints, and prompts as the target's tokenizer reads them."""

    name: str
    target: Path
    draft: Path

    @property
    def tokenizer(self) -> Tokenizer:
        return model_files_of(self.target).tokenizer()

    def prompts(self, count: int) -> list[Prompt]:
        return read_prompts(REPOSITORY_ROOT / "benchmarks/prompts.jsonl", self.tokenizer, count)


def bundled_pair() -> Pair:
    """The chat pair where `scripts/setup` has brought its target, else the pair for tests, which a
    checkout always has."""
    target = model_at(REPOSITORY_ROOT / "models/target")
    if target.is_file() or (target / "config.json").exists():
        return Pair("bundled", target, REPOSITORY_ROOT / "models/draft")
    tests = REPOSITORY_ROOT / "tests/pair"
    return Pair("tests/pair", tests / "target", tests / "draft")


def load_target(pair: Pair, device: str, dtype: Dtype, context: int) -> CheckedEngine:
    """A target with room for the two sessions and two paths of the self-check."""
    options = EngineOptions(context, sessions=2, paths=2, dtype=dtype, threads=1, device=device)
    return _load(pair.target, options)


def load_draft(pair: Pair, device: str, dtype: Dtype, context: int) -> CheckedEngine:
    """A draft: its sessions hold growing trees."""
    options = EngineOptions(
        context, 2, paths=0, pending=_PENDING, dtype=dtype, threads=1, device=device
    )
    return _load(pair.draft, options)


def _load(checkpoint: Path, options: EngineOptions) -> CheckedEngine:
    """The kernels on a device; on a processor the eager decoder."""
    engine = TorchEngine if options.device == "cpu" else CapturedEngine
    return engine.load(checkpoint, options)


def read(engine: Engine, tokens: Sequence[int], chunks: Iterable[int]) -> NDArray[np.float32]:
    """Logits [tokens, vocabulary] of a text that is read in chunks of these sizes."""
    session = engine.open_session()
    found = []
    at = 0
    for chunk in chunks:
        part = tokens[at : at + chunk]
        if not part:
            break
        logits = engine.forward([SequenceTokens(session, part)])[0]
        found += [logits.row(row).copy() for row in range(len(part))]
        engine.commit_kv(session, range(len(part)))
        at += len(part)
    engine.close_session(session)
    return np.stack(found)


def text_of(pair: Pair, count: int) -> list[int]:
    """The first `count` tokens of all prompts, one behind the other, again and again."""
    tokens: list[int] = []
    prompts = pair.prompts(16)
    while len(tokens) < count:
        tokens += [token for prompt in prompts for token in prompt.tokens]
    return tokens[:count]
