"""The metrics of `card`, under stable names, at the server's metrics endpoint.

`exporter` has the table of all names and sends everything to Triton, a few times a second; `ledger`
counts requests and reads the engines' counters in the pool.
"""

from card.serving.metrics.exporter import FAMILIES, Family
from card.serving.metrics.ledger import Metrics
