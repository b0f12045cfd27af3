"""The draft's side: follow commits, re-root, let drafters propose, publish.

`loop`      all sessions, one pass after the other
`session`   one of them: its commits, its tree, how far it got
`drafters`  from settings to what the loop asks for candidates
`remote`    what devices draft for sessions that the loop leaves alone
"""

from card.drafting.drafters import make_drafters
from card.drafting.loop import DraftLoop, DraftTimes
