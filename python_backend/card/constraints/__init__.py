"""Structured output: which tokens may come next if the text is to be what its guide describes.

`guide`             what a request asks for, and what may be wrong with it
`grammar`           a guide as the grammar that llguidance compiles
`compiled`          a compiled guide, and the place that a text has reached in it
`compiler`          compiles guides beside a loop, and keeps the latest
`threads`           where guides compute, so that no loop waits for them
`constraint`        what holds a text of the target to its guide
`draft_constraint`  what the draft knows of a guide
`check`             tries guides in a process of its own
"""

from card.constraints.guide import GUIDE_TYPES, Budget, Guide, GuideError
