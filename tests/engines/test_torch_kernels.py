"""Kernels of a device's passes, line by line in Triton's interpreter: right to what float64 gives,
and the same bits for a row whatever else is in its pass.

What a GPU's matrix unit does with them only the self-check on one shows.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from tiny_models import forward_rows, opened, random_tokens, read_alone
from torch import Tensor

from card.engines import FOLLOWS_PREFIX, EngineError, Ranking, SequenceTokens
from card.engines.architecture import read_architecture
from card.engines.interface import BLOCK, forward_one_by_one
from card.engines.options import EngineOptions
from card.engines.torch.captured.engine import CapturedEngine
from card.engines.torch.captured.kernels.attention import attend
from card.engines.torch.captured.kernels.decoder import KernelDecoder
from card.engines.torch.captured.kernels.pages import PAGE, PagedKeyValueCache
from card.engines.torch.captured.kernels.products import SkinnyLinear
from card.engines.torch.captured.kernels.ranking import MOST_RANKED
from card.engines.torch.captured.ranking import DeviceRanking
from card.engines.torch.engine import TorchEngine
from card.engines.torch.logits import rank
from card.speculation.drafters.growth.frontier import PositionNoise

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Rows that pad a pass hold anything, as on a device.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

DTYPES = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Most that a result may be off, relative to the greatest: attention rounds its weights and what it
gives, and the interpreter cuts bfloat16 off."""

generator = torch.Generator()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Whichever tests ran before."""
    generator.manual_seed(0)


def random(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*sizes, generator=generator).to(dtype)


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    worst = (found.double() - expected).abs().max() / expected.abs().max()
    assert worst <= ROUNDING[dtype]


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "outputs", "inputs"), [(torch.bfloat16, 300, 576), (torch.float16, 128, 200)]
)
def test_a_product_is_that_of_float64_and_a_row_has_its_bits_among_any_others(
    dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    linear = SkinnyLinear(random(outputs, inputs, dtype=dtype), None, multiprocessors=6)
    assert linear.splits > 1, "or no sum is divided"
    rows = random(64, inputs, dtype=dtype)
    found = linear.partial(rows)
    expected = rows.double() @ linear.weight.double().T
    assert_close(found.double().sum(0), expected, dtype)
    for count in (1, 16, 17, 33, 63):
        some = linear.partial(rows[64 - count :].contiguous())
        assert torch.equal(some, found[:, 64 - count :]), count


# --- attention ------------------------------------------------------------------------------------

HEADS, KV_HEADS, SIZE, START = 4, 2, 80, 70
PARENTS = [-1, 0, 1, 2, 3, 4, 5, 6, 0, 8, -1]
"""Of pending rows behind `START` positions: two branches of one, and one that stands alone."""

TILES = [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9], [10]]
"""These rows along their paths."""


def path_to(row: int) -> list[int]:
    return [] if row < 0 else [*path_to(PARENTS[row]), row]


class Cache:
    """Two lanes of pages that lie in no order. The pending rows' keys may have any places."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.keys = random(7, KV_HEADS, PAGE, SIZE, dtype=dtype)
        self.values = random(7, KV_HEADS, PAGE, SIZE, dtype=dtype)
        self.table = torch.tensor([[4, 1, 6], [0, 5, 2]], dtype=torch.int32)
        self.queries = random(len(PARENTS), HEADS, SIZE, dtype=dtype)

    def at(self, lane: int, place: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, size]."""
        page, slot = int(self.table[lane, place // PAGE]), place % PAGE
        return self.keys[page, :, slot], self.values[page, :, slot]

    def attend(self, lane: int, tiles: list[list[int]], place: list[int]) -> Tensor:
        """Of rows in these tiles; `place` of each pending row."""
        width = 8
        padded = [[*rows, *[-1] * (8 - len(rows))] for rows in tiles]
        paths = [[place[row] for row in path_to(rows[-1])] for rows in tiles]
        return attend(
            self.queries,
            self.keys,
            self.values,
            self.table,
            ints([START + len(path_to(row)) - 1 for row in range(len(PARENTS))]),
            ints(padded),
            ints([lane] * len(tiles)),
            ints([START] * len(tiles)),
            ints([path + [0] * (width - len(path)) for path in paths]),
        )

    def expected(self, lane: int, row: int, place: list[int]) -> Tensor:
        """[heads * size] float64."""
        seen = [self.at(lane, at) for at in range(START)]
        seen += [self.at(lane, place[ancestor]) for ancestor in path_to(row)]
        keys, values = (torch.stack(each).double() for each in zip(*seen, strict=True))
        query = self.queries[row].double().view(KV_HEADS, -1, SIZE)
        scores = torch.einsum("kgs,nks->kgn", query, keys) * SIZE**-0.5
        return torch.einsum("kgn,nks->kgs", scores.softmax(-1), values).reshape(-1)


def ints(values: list[int] | list[list[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


ALONE = [[row] for row in range(len(PARENTS))]
IN_ORDER = list(range(START, START + len(PARENTS)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_of_a_tree_attends_to_its_path_with_the_same_bits_in_any_tile(
    dtype: torch.dtype,
) -> None:
    """And wherever its ancestors lie."""
    cache = Cache(dtype)
    alone = cache.attend(0, ALONE, IN_ORDER)
    for row in range(len(PARENTS)):
        assert_close(alone[row], cache.expected(0, row, IN_ORDER), dtype)
    assert torch.equal(cache.attend(0, TILES, IN_ORDER), alone)
    elsewhere = [150, START, 180, 131, 129, 90, 71, 100, 82, 140, 160]
    before = {place: [part.clone() for part in cache.at(0, place)] for place in IN_ORDER}
    for place, moved in zip(IN_ORDER, elsewhere, strict=True):
        for part, content in zip(cache.at(0, moved), before[place], strict=True):
            part.copy_(content)
    assert torch.equal(cache.attend(0, TILES, elsewhere), alone)


def test_places_are_copied_to_any_part_of_a_page(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "qwen3")
    kv = PagedKeyValueCache(
        read_architecture(tmp_path), 3, 2 * PAGE, torch.float32, torch.device("cpu")
    )
    generator = torch.Generator().manual_seed(0)
    for buffers in (kv.keys, kv.values):
        buffers.copy_(torch.rand(buffers.shape, generator=generator))

    def entries(lane: int) -> Tensor:
        """[2 * places, layers, kv_heads, head_size] of a lane."""
        pages, places = np.divmod(kv.slots(lane, np.arange(2 * PAGE)), PAGE)
        return torch.cat([buffers[:, pages, :, places] for buffers in (kv.keys, kv.values)])

    before = [entries(lane) for lane in range(3)]
    for lane in (1, 2):
        kv.copy(0, BLOCK, 3 * BLOCK, lane, 0)
    for lane in range(3):
        expected = before[lane].clone()
        for half in (0, 2 * PAGE) if lane else ():
            expected[half : half + 2 * BLOCK] = before[0][half + BLOCK : half + 3 * BLOCK]
        assert torch.equal(entries(lane), expected)


# --- the engine -----------------------------------------------------------------------------------


def small_checkpoint(path: Path, layers: int = 2) -> Path:
    """Of few heads and layers, for each takes the interpreter its time."""
    config = copy.deepcopy(tiny_models.FAMILIES["qwen3"])
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config.update(heads | {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers})
    tiny_models.build(config, seed=0).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("qwen3"))


OPTIONS = EngineOptions(200, 2, dtype="bfloat16")


@pytest.fixture(scope="module")
def engine(directory: Path) -> CapturedEngine:
    return CapturedEngine.load(directory, OPTIONS)


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> CapturedEngine:
    """A draft of one layer, whose trees grow."""
    path = small_checkpoint(tmp_path_factory.mktemp("draft"), layers=1)
    return CapturedEngine.load(path, replace(OPTIONS, paths=0))


TEXT = random_tokens(12)


def test_an_engine_of_kernels_reads_as_the_eager_one_and_by_rows_and_branches_alike(
    directory: Path, engine: CapturedEngine
) -> None:
    eager = TorchEngine.load(directory, EngineOptions(200, 1, dtype="float32"))
    expected = read_alone(eager, TEXT, [12])
    found = read_alone(engine, TEXT, [12])
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    with opened(engine) as session:
        engine.forward([SequenceTokens(session, TEXT[:8], logits=0)])
        engine.commit_kv(session, range(8))
        wrong = (TEXT[8] + 1) % engine.vocabulary
        parents = [FOLLOWS_PREFIX, 0, FOLLOWS_PREFIX, 2, 3]
        rows = forward_rows(
            engine, [SequenceTokens(session, [wrong, TEXT[0], *TEXT[8:11]], parents)]
        )[0]
        assert rows[2:].tobytes() == found[8:11].tobytes()
        engine.commit_kv(session, [2, 3, 4])
        last = forward_rows(engine, [SequenceTokens(session, TEXT[11:])])[0]
        assert last.tobytes() == found[11:].tobytes()


def test_engine_of_kernels_returns_the_eager_ones_states_when_it_taps(
    directory: Path, engine: CapturedEngine
) -> None:
    taps = (0, 1, -1)
    eager = TorchEngine.load(directory, EngineOptions(200, 1, dtype="float32", taps=taps))
    tapped = CapturedEngine.load(directory, replace(OPTIONS, taps=taps))
    found = []
    for each in (eager, tapped):
        with opened(each) as session:
            states = each.forward([SequenceTokens(session, TEXT, logits=0)])[0].states
            assert states is not None
            found.append((states.astype(np.uint32) << 16).view(np.float32))
    assert np.abs(found[1] - found[0]).max() < 0.05 * np.abs(found[0]).max()
    same = [read_alone(each, TEXT, [12]).tobytes() for each in (engine, tapped)]
    assert same[0] == same[1]


def test_a_tree_that_grows_keeps_what_survives(growing: CapturedEngine) -> None:
    alone = read_alone(growing, TEXT, [12])
    wrong = (TEXT[8] + 1) % growing.vocabulary
    with opened(growing) as session:
        growing.forward([SequenceTokens(session, TEXT[:8], logits=0)])
        growing.commit_kv(session, range(8))
        growing.forward([SequenceTokens(session, [wrong, TEXT[8]], [FOLLOWS_PREFIX] * 2, logits=0)])
        growing.forward([SequenceTokens(session, [wrong, TEXT[9]], [0, 1], logits=0)])
        growing.commit_kv(session, [1], [3])
        third = forward_rows(growing, [SequenceTokens(session, TEXT[10:11], [0])])[0]
        growing.commit_kv(session, [0, 1])
        assert growing.length(session) == 11
    assert third.tobytes() == alone[10:11].tobytes()


# --- ranking --------------------------------------------------------------------------------------


def test_ids_are_ranked_as_by_the_operators_with_the_noise_of_sampling() -> None:
    vocabulary = 5000  # parts of a row, the last of them not whole
    logits, noise = random(16, vocabulary), PositionNoise(7, np.arange(vocabulary))
    drawn = Ranking(5, 0.7, noise.rows([3, 4]), noise.keys([3, 4]))
    ranking = DeviceRanking(torch.device("cpu"), None)
    for asked in (Ranking(MOST_RANKED), drawn):
        batch = [
            SequenceTokens(0, [1, 2], ranking=asked),
            SequenceTokens(1, [1], ranking=Ranking(3)),
        ]
        assert ranking.takes(batch)
        ((first, second),) = ranking.answers([ranking.ask(batch, logits)])
        for found, rows, of in ((first, logits[:2], asked), (second, logits[2:3], Ranking(3))):
            ids, log_probabilities = rank(rows, of)
            assert np.array_equal(found.best()[0], ids.numpy())
            assert np.allclose(found.best()[1], log_probabilities.numpy(), atol=1e-5)


def test_a_chain_gives_what_its_passes_give_one_by_one(growing: CapturedEngine) -> None:
    noise = PositionNoise(3, growing.ranked_ids)

    def asks(position: int) -> Ranking:
        return Ranking(8, 0.8, noise.rows([position]), noise.keys([position]))

    assert growing.runs_ahead
    found = []
    for forward_chain in (growing.forward_chain, partial(forward_one_by_one, growing)):
        with opened(growing) as session:
            text = SequenceTokens(session, TEXT[:3], logits=1, ranking=asks(3))
            logits = forward_chain(text, [asks(4)], 2)
            growing.commit_kv(session, range(3), [3])
            end = SequenceTokens(session, [TEXT[3]], [0], ranking=Ranking(8))
            logits += forward_chain(end, [Ranking(8)], 1)
        best = (one.best() for one in logits)
        found.append([(ids.tolist(), values.tobytes()) for ids, values in best])
    assert found[0] == found[1]


# --- where they do not run ------------------------------------------------------------------------


def test_load_refuses_the_device_when_its_kernels_do_not_compile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_a_compiler(*_: object) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(KernelDecoder, "forward", without_a_compiler)
    with pytest.raises(EngineError, match=r"no C compiler.*TRITON_CACHE_DIR.*set device: cpu"):
        CapturedEngine.load(directory, OPTIONS)


# --- compiling ------------------------------------------------------------------------------------


def test_every_kernel_compiles_for_a_device(tmp_path: Path) -> None:
    """Triton needs none to compile for it."""
    script = Path(__file__).with_name("compile_kernels.py")
    environment = dict(os.environ) | {"TRITON_CACHE_DIR": str(tmp_path)}
    del environment["TRITON_INTERPRET"]
    result = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
