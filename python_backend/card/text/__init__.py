"""Tokens become text as they are committed: whole characters, stop strings, attribution."""

from card.text.detokenizer import Delta, Detokenizer
