"""The Triton models and the supervisor: the only place that knows Triton.

`wire`, `delta`         the tensors that clients send and get
`preprocessing`         text to token ids, after every check
`card_model`            opens sessions (`sessions`), follows commits (`follower`), streams (`streams`)
`postprocessing`        deltas to tensors
`engine_model`          the draft's and the target's processes (`engine_process`), brought in by `attach`
`supervisor`            starts the server and heals it
"""
