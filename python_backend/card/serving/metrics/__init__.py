"""What `card` counts, under stable names, at the server's metrics endpoint.

`families` is the table of all names; `progress` reads what the engines left in the pool;
`exporter` hands everything to Triton, a few times a second, from a thread of its own.
"""

from card.serving.metrics.families import FAMILIES, Family
from card.serving.metrics.ledger import Metrics
