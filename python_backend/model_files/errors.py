"""What reading a model's files may raise."""


class ModelFilesError(ValueError):
    """A file beside a model's weights is missing or wrong; the message names it and says why."""
