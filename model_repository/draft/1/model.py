"""Handed over to the package `card`, where it can be read and tested."""

from card.serving.triton.engine_model import DraftModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
