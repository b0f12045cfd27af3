"""A proxy in front of Triton's gRPC that forwards only safe requests.

Some requests crash this version of Triton before a model sees them (SECURITY.md). `request` detects
them, `proxy` forwards all others unchanged, `admission` bounds open calls, `server` is the port,
and `command` the process.
"""
