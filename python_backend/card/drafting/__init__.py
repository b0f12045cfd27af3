"""The draft's side: follow commits, re-root, let drafters propose, publish.

`loop`      all sessions, one draft pass after the other; each with its commits and its tree
`drafters`  makes the drafters that the settings name
`remote`    the chains that devices draft for sessions which the loop leaves alone
"""

from card.drafting.drafters import make_drafters
from card.drafting.loop import DraftLoop, DraftTimes
