"""The OpenVINO engine: a checkpoint as one compiled graph on the processor.

By default every import of OpenVINO forks a process that reports to Google Analytics. In a model's
process such a child inherits the lock of loading models, and Triton's signal handler keeps it from
being terminated. Behind a network that drops packets no other model could then load. So the package
that reports is hidden first.
"""

import sys

from card.engines.openvino.threads import load_tbb

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
load_tbb()
