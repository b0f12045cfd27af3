"""A proxy in front of Triton's gRPC that lets through what the models are meant to see.

Some requests end this version of Triton before a model sees them (SECURITY.md). `request` knows
which, `proxy` passes everything else on as it is, `server` is the port that both stand behind, and
`command` the process.
"""
