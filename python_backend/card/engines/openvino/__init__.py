"""A checkpoint as one compiled OpenVINO graph on the processor: no operator is dispatched alone."""

from card.engines.openvino.telemetry import refuse_telemetry
from card.engines.openvino.threads import load_tbb

refuse_telemetry()
load_tbb()
