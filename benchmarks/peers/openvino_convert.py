"""Convert a Hugging Face directory for OpenVINO, its weights kept exactly."""

from __future__ import annotations

import sys

from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig


def convert(checkpoint: str, converted: str) -> None:
    """Weights go to float32, which holds every bfloat16; what they are computed in is the
    worker's choice."""
    main_export(
        checkpoint,
        converted,
        task="text-generation-with-past",
        ov_config=OVConfig(dtype="fp32"),
        convert_tokenizer=True,
        local_files_only=True,
    )


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2])
