"""What all unit tests share: properties are about results, not about a busy machine's speed."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
