class RequestError(RuntimeError):
    """One request failed; the engine goes on."""
