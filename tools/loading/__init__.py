"""Load tests of the real server: `scripts/load` measures it, `scripts/soak` searches for failures.

`supervised` is a supervisor as a child process, `service` what such a service tells of itself.
"""
