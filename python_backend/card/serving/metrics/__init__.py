"""The metrics of `card`, under stable names, at the server's metrics endpoint.

`families` is the table of all names; `progress` reads the engines' counters in the pool;
`exporter` sends everything to Triton, a few times a second, from a thread of its own.
"""

from card.serving.metrics.families import FAMILIES, Family
from card.serving.metrics.ledger import Metrics
