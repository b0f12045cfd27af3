"""The Triton models: one module for each kind of model, and their processes.

`preprocessing`   checks a request and turns its text into ids
`card_model`      owns the pool, opens a session for each request, streams the committed tokens
`postprocessing`  turns deltas into the tensors of clients
`unary`           the models that answer once
`remote_model`    puts the chains of devices into the pool
`engine_model`    the draft and the target: each an `engine_process` that runs a `loaded_model`
`attach`          attaches the engines to `card`'s pool
`triton_request`  wraps the needed part of Triton's requests and responses
"""
