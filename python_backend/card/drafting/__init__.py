"""The draft's side: follow commits, re-root, let drafters propose, publish.

`loop`      follows the commits of all sessions and grows their trees, one draft pass at a time
`drafters`  makes the drafters that the settings name
`remote`    publishes the chains of devices, for sessions that the loop does not draft for
"""

from card.drafting.drafters import make_drafters, token_pass_ms
from card.drafting.loop import DraftLoop, DraftTimes
