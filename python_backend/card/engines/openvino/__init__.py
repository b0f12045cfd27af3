"""The OpenVINO engine: a checkpoint as one compiled graph on the processor."""

from card.engines.openvino.telemetry import refuse_telemetry
from card.engines.openvino.threads import load_tbb

refuse_telemetry()
load_tbb()
