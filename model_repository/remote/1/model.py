"""Handed over to the package `card`, where it can be read and tested."""

from card.serving.triton.remote_model import RemoteModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
