"""What can be wrong with what the planner is given."""

from __future__ import annotations


class PlanError(ValueError):
    """An input cannot be used; the message says which, why, and what is allowed."""
