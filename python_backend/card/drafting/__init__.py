"""The draft's side of CARD: follow commits, re-root, grow the tree, publish it.

`loop`       all sessions, one pass after the other
`session`    one of them: its commits, its tree, its KV cache
`tree`       the tree while it grows, and the re-root
`growth`     which nodes are expanded next: best first, or layer by layer
`expansion`  the rows of one pass: those nodes, and guesses from the text behind them
`children`   what hangs below each row, scored as the target will choose
"""

from card.drafting.loop import DraftLoop, DraftTimes
from card.drafting.tree import GrowingTree, ReRoot

__all__ = ["DraftLoop", "DraftTimes", "GrowingTree", "ReRoot"]
