"""The whole adapter around the stand-in's processes: lossless against its plain decoding."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_pair import TARGET, pair_settings
from tensorrt_double import standin
from tokenizers import Tokenizer

from card.cache import CardSlot, Finish, Pool, SlotCounters, SlotRequest
from card.engines.calibration_cache import CALIBRATION_CACHE_VARIABLE
from card.engines.tensorrt_llm.runtime import Runtime
from card.engines.tensorrt_llm.sampling import sampling_arguments
from card.sampling import SamplingParameters
from card.serving.geometry import pool_geometry
from card.serving.triton.loaded_model import load_model
from card.settings import Role, Settings
from card.speculation.drafters import tensorrt

PROMPTS = (
    "def fibonacci(n):",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(path):\n    for name in",
)
TOKENS = 40
SLOTS, CONTEXT = 3, 512
"""As in `test_tensorrt_llm`: what the stand-in finds out about its models is shared."""
GREEDY = SamplingParameters(end_ids=(0,))
LIMIT_S = 120.0


class Pair:
    """Both models behind the adapter, their loops stepped by the test."""

    def __init__(self, folder: Path) -> None:
        self.settings = settings_for(folder)
        geometry = pool_geometry(self.settings)
        self.pool = Pool.create(folder, os.getpid(), geometry)
        roles: tuple[Role, ...] = ("target", "draft")
        self.models = [load_model(self.settings, role, os.getpid()) for role in roles]
        self.loops = []
        for model in self.models:
            pool = Pool.open(folder, os.getpid(), geometry)
            assert pool is not None
            self.loops.append(model.loop(pool))
        self.until(lambda: self.loops[0]._bindings.followed)  # type: ignore[attr-defined]

    def close(self) -> None:
        for model in self.models:
            model.close()
        self.pool.unlink()

    def until(self, holds: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < limit, "it never came to hold"
            for loop in self.loops:
                loop.step()

    def write(
        self, prompts: list[list[int]], decoding: str, parameters: SamplingParameters = GREEDY
    ) -> tuple[list[list[int]], list[SlotCounters]]:
        """Texts of sessions that are decoded together."""
        slots = [self.pool.card_slot(index) for index in range(len(prompts))]
        for slot, prompt in zip(slots, prompts, strict=True):
            request = SlotRequest(np.array(prompt, np.int64), TOKENS, decoding, parameters)
            slot.open(request, self.pool.new_session_id())
        self.until(lambda: all(s.finish(s.session_id) is not Finish.RUNNING for s in slots))
        texts = [slot.output(0, slot.committed(slot.session_id)).tolist() for slot in slots]
        counters = [slot.counters() for slot in slots]
        for slot in slots:
            slot.close()
        self.until(lambda: all(slot.reclaim() for slot in slots))
        return texts, counters


def settings_for(folder: Path) -> Settings:
    return pair_settings(
        engine="tensorrt_llm",
        # Both in one process, which sees one set of devices.
        target={"tensorrt_llm": {"kv_fraction": 0.4}},
        draft={"tensorrt_llm": {"devices": [0], "kv_fraction": 0.4}},
        speculation={"rows": 8, "depth": 16},
        cache={"directory": folder, "slots": SLOTS, "nodes": 256},
        limits={"prompt_tokens": 64, "context_tokens": CONTEXT, "max_tokens": 64},
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, calibration_cache: Path) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("standin")
    with pytest.MonkeyPatch.context() as patch, standin(folder, "1.2.1", patch) as imported:
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        patch.setenv(CALIBRATION_CACHE_VARIABLE, str(calibration_cache))
        yield imported
    # Closing ended all children, Python's own helper for semaphores too; other tests need one.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resource_tracker.ensure_running()


@pytest.fixture(scope="module")
def pair(package: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pool"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain(package: Any, pair: Pair, prompts: list[list[int]]) -> list[list[int]]:
    """What the runtime writes as it comes, without a drafter."""
    settings = pair.settings
    runtime = Runtime(
        package,
        {
            "model": str(settings.target.path),
            "skip_tokenizer_init": True,
            "max_batch_size": SLOTS,
            "max_seq_len": CONTEXT,
        },
    )

    async def text(prompt: list[int]) -> list[int]:
        request = SlotRequest(np.array(prompt, np.int64), TOKENS, "autoregressive", GREEDY)
        output = runtime.generate(prompt, sampling_arguments(request, TOKENS))
        async for _ in output:
            pass
        tokens: list[int] = output.outputs[0].token_ids
        return tokens

    texts = [runtime.run(text(prompt)) for prompt in prompts]
    runtime.shutdown()
    assert max(map(len, texts)) == TOKENS
    return texts


def test_alone_or_together_the_text_is_the_plain_one(
    pair: Pair, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    together, counters = pair.write(prompts, "card")
    assert together == plain
    for prompt, text in zip(prompts, plain, strict=True):
        found, more = pair.write([prompt], "card")
        assert found == [text]
        counters += more
    limit = time.monotonic() + LIMIT_S
    while not any(one.accepted for one in counters):  # a late draft is no wrong one
        assert time.monotonic() < limit, "nothing is ever accepted"
        counters += pair.write(prompts, "card")[1]
    for one in counters:
        assert one.accepted <= one.drafted
        assert one.hits <= one.queries


def test_without_speculation_the_text_is_the_plain_one_and_every_step_one_token(
    pair: Pair, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    texts, counters = pair.write(prompts, "autoregressive")
    assert texts == plain
    assert [one.steps for one in counters] == [len(text) for text in plain]
    assert sum(one.drafted for one in counters) == 0


def test_sampled_texts_end_as_they_should(pair: Pair, prompts: list[list[int]]) -> None:
    texts, counters = pair.write(
        prompts, "card", SamplingParameters(temperature=0.8, top_p=0.9, seed=1)
    )
    assert [len(text) for text in texts] == [TOKENS] * len(prompts)
    assert sum(one.drafted for one in counters) > 0


class Requests:
    """All that is asked of a runtime from now on, oldest first."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[Any] = []
        plain = runtime.generate

        def generate(prompt: list[int], sampling: dict[str, Any]) -> Any:
            self.outputs.append(plain(prompt, sampling))
            return self.outputs[-1]

        monkeypatch.setattr(runtime, "generate", generate)

    @property
    def cancelled(self) -> int:
        """How many the engine ended because they were aborted."""
        return sum(one.outputs[0].finish_reason == "cancelled" for one in self.outputs)


def runtime_of(model: Any) -> Runtime:
    """What the target, or the draft's drafter, asks for tokens."""
    if hasattr(model, "_drafters"):
        (model,) = model._drafters.values()
    runtime: Runtime = model._runtime
    return runtime


def test_what_a_commit_prunes_is_cancelled_in_the_engine(
    pair: Pair, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would go on taking part in the draft's passes."""
    # Requests that are behind the text could be given up later, too, when they come to differ.
    monkeypatch.setattr(tensorrt, "_MOST_BEHIND", 0)
    requests = Requests(runtime_of(pair.models[1]), monkeypatch)
    limit = time.monotonic() + LIMIT_S
    while not requests.cancelled:
        assert time.monotonic() < limit, "nothing was ever cancelled"
        with opened(pair, prompts[0], "card") as slot:
            pair.until(
                lambda: requests.cancelled > 0 or slot.finish(slot.session_id) is not Finish.RUNNING
            )
            # The end of a session cancels, too: only what came before counts here.
            found = requests.cancelled
        if not found:
            requests.outputs.clear()


def test_what_a_closed_session_asked_for_is_cancelled_in_both_engines(
    pair: Pair, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [Requests(runtime_of(model), monkeypatch) for model in pair.models]
    limit = time.monotonic() + LIMIT_S
    while not all(engine.cancelled for engine in engines):
        assert time.monotonic() < limit, "nothing was ever cancelled"
        with opened(pair, prompts[1], "card"):
            pair.until(lambda: all(engine.outputs for engine in engines))
        # An engine that was quicker than the closing ends as `length`: then once more.
        pair.until(lambda: all(one.finished for engine in engines for one in engine.outputs))


@contextmanager
def opened(pair: Pair, prompt: list[int], decoding: str) -> Iterator[CardSlot]:
    """A session that is closed, and its slot free again, when the block ends."""
    slot = pair.pool.card_slot(0)
    request = SlotRequest(np.array(prompt, np.int64), TOKENS, decoding, GREEDY)
    slot.open(request, pair.pool.new_session_id())
    yield slot
    slot.close()
    pair.until(lambda: slot.reclaim())


def test_the_devices_were_set_before_the_import(package: Any) -> None:
    """The stand-in cannot be imported otherwise."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert os.environ["TRTLLM_NO_USAGE_STATS"] == "1", "it would report how it is used"
