"""Load on the real server: `scripts/load` measures it, `scripts/soak` looks for what it breaks."""
