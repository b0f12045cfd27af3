"""Compile every kernel as a large model uses it, for a device that need not be here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from card.engines.torch.captured.kernels import attention, finishing, products, ranking

DEVICE = GPUTarget("cuda", 90, 32)
HEADS, KV_HEADS, SIZE = 32, 8, 128
INTEGERS = (
    *("rows", "outputs", "width", "split_stride", "steps", "half", "pages_of_lane"),
    *("vocabulary", "parts", "sums_at"),
)
INDICES = ("slots", "table", "positions", "tiles", "lanes", "starts", "paths", "ids", "best_ids")
FLOATS = ("sums", "scales", "factors", "values", "weights", "log_probabilities")


def compiled(kernel: Any, constants: Mapping[str, object], warps: int, stages: int = 3) -> None:
    """Raises what Triton raises where a kernel does not compile."""
    types: dict[str, str] = dict.fromkeys(constants, "constexpr")
    types |= dict.fromkeys((*INTEGERS, "path_width"), "i32")
    types |= dict.fromkeys(INDICES, "*i32") | dict.fromkeys(FLOATS, "*fp32")
    types |= {"epsilon": "fp32", "scale": "fp32"}
    types |= {"keys": "*i64"} if "factors" in kernel.arg_names else {}
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "*bf16") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    triton.compile(source, target=DEVICE, options={"num_warps": warps, "num_stages": stages})


for row_tiles in (1, 4):
    tiles = {"ROW_TILE": 16, "OUTPUT_TILE": products.OUTPUT_TILE, "INPUT_TILE": products.INPUT_TILE}
    compiled(products._multiply, {"ROW_TILES": row_tiles, **tiles}, 4, 4)
sizes = {"HEADS": HEADS, "SIZE": SIZE, "COLUMNS": SIZE}
pages = {"KV_HEADS": KV_HEADS, "PAGE": 64}
attending = {"BLOCK": 64, "SPLITS": attention.SPLITS, "TILE": 4, "QUERIES": 16}
compiled(attention._attend, sizes | pages | attending, 4, 2)
compiled(attention._join, sizes | {"SPLITS": attention.SPLITS}, 1)
adding = {"SPLITS": 7, "BIASED": True, "COLUMNS": 1024}
compiled(finishing._plain, adding, 4)
compiled(finishing._gated, adding, 4)
compiled(finishing._plus_then_norm, adding | {"COLUMNS": 4096}, 8)
compiled(finishing._rotate_and_store, adding | sizes | pages | {"NORMED": True}, 1)
compiled(ranking._rank_part, {"DRAWS": True, "PART": 2048, "BEST": ranking.MOST_RANKED}, 4)
compiled(ranking._join_parts, {"PARTS": 64, "BEST": ranking.MOST_RANKED}, 4)
