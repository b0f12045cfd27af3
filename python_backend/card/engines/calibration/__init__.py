"""What an engine finds out about itself at load: row invariance and what a row costs.

`interface`   what an engine offers for it
`readings`    one text, read in many ways
`invariance`  whether the bits are the same in all of them
`timing`      how long passes take
`alone`       whether more threads change no bit
`choice`      the cheapest variant whose rows are independent
"""

from card.engines.calibration.alone import check_alone
from card.engines.calibration.choice import known_invariant, make_row_invariant
from card.engines.calibration.interface import ConfigurableEngine
from card.engines.calibration.invariance import check_row_invariance, same_bits
from card.engines.calibration.readings import drop
from card.engines.calibration.timing import measure_row_costs
