"""Run with ``python -m gpu``."""

import sys

try:
    from gpu.command import app
except ModuleNotFoundError as missing:
    print(
        f"gpu_check: {sys.executable} has no {missing.name}: install requirements/gpu.txt there "
        "(docs/gpu.md), or unset PYTHON and let scripts/setup make an environment",
        file=sys.stderr,
    )
    sys.exit(2)

if __name__ == "__main__":
    app(prog_name="scripts/gpu_check")
