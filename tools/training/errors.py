"""The error that training raises."""


class TrainingError(ValueError):
    """A stage cannot begin or go on; the message names option, field or file, and what to do."""
