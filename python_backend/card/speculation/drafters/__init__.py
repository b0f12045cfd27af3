"""Drafters, by the value of the setting `speculation.drafter`.

`remote` is not a value of that setting: a device makes the candidates of a request with a key.
"""

from __future__ import annotations

from card.speculation.drafters.cascade import CascadeDrafter
from card.speculation.drafters.heads.drafter import (
    BlockDrafter,
    HeadDrafter,
    ParallelHeadDrafter,
)
from card.speculation.drafters.hierarchy import HierarchyDrafter
from card.speculation.drafters.interface import DraftConfig, DraftedSession, Drafter
from card.speculation.drafters.parallel import ParallelDrafter
from card.speculation.drafters.requests import TensorRTDrafter, VllmDrafter
from card.speculation.drafters.tree import TreeDrafter

__all__ = ["DRAFTERS", "DraftConfig", "DraftedSession", "Drafter"]

DRAFTERS: dict[str, type[Drafter]] = {
    "tree": TreeDrafter,
    "cascade": CascadeDrafter,
    "hierarchy": HierarchyDrafter,
    "parallel": ParallelDrafter,
    "eagle3": HeadDrafter,
    "peagle": ParallelHeadDrafter,
    "pard2": ParallelHeadDrafter,
    "dflash": BlockDrafter,
    "dspark": BlockDrafter,
    "specformer": BlockDrafter,
    "ctc": BlockDrafter,
    "tensorrt": TensorRTDrafter,
    "vllm": VllmDrafter,
}
