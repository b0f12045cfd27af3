"""Load on the real server: `scripts/load` measures it, `scripts/soak` looks for what it breaks.

`supervised` is a supervisor as a child process, `service` what such a service tells of itself.
"""
