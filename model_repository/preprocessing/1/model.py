"""Handed over to the package `card`, where it can be read and tested."""

from card.serving.triton.preprocessing import PreprocessingModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
