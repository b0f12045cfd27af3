"""Handed over to the package `card`, where it can be read and tested."""

from card.serving.triton.card_model import CardModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
