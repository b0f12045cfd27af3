"""Run with ``python -m trtllm``."""

from trtllm.command import app

if __name__ == "__main__":
    app(prog_name="scripts/trtllm_check")
