"""`scripts/load`: a running server under load, and the memory of a server of its own.

`supervised` is a supervisor as a child process, `service` what such a service tells of itself.
"""
