"""Structured output: which tokens may come next if the text is to be what its guide describes."""

from card.constraints.guide import GUIDE_TYPES, Guide, GuideError
