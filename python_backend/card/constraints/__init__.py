"""Structured output: computes the tokens that may come next in a text with a guide.

`guide`       the guide of a request, and its errors
`grammar`     turns a guide into the grammar that llguidance compiles
`compiled`    a compiled guide, and the state of a text in it
`compiler`    compiles guides beside a loop, and keeps the latest
`constraint`  enforces a guide on a text of the target, masks the draft's candidates
`check`       compiles guides in a separate process, to test them
"""

from card.constraints.guide import GUIDE_TYPES, Budget, Guide, GuideError
