"""Run with ``python -m gpu``."""

from gpu.command import app

if __name__ == "__main__":
    app(prog_name="scripts/gpu_check")
