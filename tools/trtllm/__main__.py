"""Run with ``python -m trtllm``."""

import sys

try:
    from trtllm.command import app
except ModuleNotFoundError as missing:
    print(
        f"trtllm_check: {sys.executable} has no {missing.name}: set PYTHON to that of NVIDIA's "
        "container, and install requirements/gpu.txt there (docs/tensorrt_llm.md)",
        file=sys.stderr,
    )
    sys.exit(2)

if __name__ == "__main__":
    app(prog_name="scripts/trtllm_check")
