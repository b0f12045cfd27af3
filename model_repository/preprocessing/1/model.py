"""Handed over to the package `card`, where it can be read and tested."""

from card.serving.preprocessing import PreprocessingModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
