"""A device that drafts for its own text and lets the server verify (SLED, arXiv 2506.09397).

`model`    what drafts: one token behind any text
`device`   how far it is ahead of what the server committed, and what it sends
`answer`   one text with both
"""

from card_client.edge.answer import stream
from card_client.edge.device import DEFAULT_AHEAD, LONGEST_CHAIN, Device
from card_client.edge.model import DraftModel, TransformersModel
