"""The draft's side of CARD: follow commits, re-root, grow the tree, publish it."""

from card.drafting.loop import DraftLoop, DraftTimes
from card.drafting.tree import GrowingTree, ReRoot

__all__ = ["DraftLoop", "DraftTimes", "GrowingTree", "ReRoot"]
