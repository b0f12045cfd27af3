"""A checkpoint as one compiled OpenVINO graph on the processor: no operator is dispatched alone."""
