"""The draft's side: follow commits, re-root, let drafters propose, publish.

`loop`      follows the commits of all sessions and grows their trees, one draft pass at a time
`drafters`  makes the drafters that the settings name
"""

from card.drafting.drafters import make_drafters, token_pass_ms
from card.drafting.loop import DraftLoop, DraftTimes
