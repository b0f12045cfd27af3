"""Convert a Hugging Face directory for OpenVINO as its exporter does unless told otherwise."""

from __future__ import annotations

import sys

from optimum.exporters.openvino import main_export


def convert(checkpoint: str, converted: str) -> None:
    """Weights of a small model stay as they are stored; what they are computed in is the worker's
    choice."""
    main_export(
        checkpoint,
        converted,
        task="text-generation-with-past",
        convert_tokenizer=True,
        local_files_only=True,
    )


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2])
