"""What Triton calls: a module for each kind of model, and what the models do with their processes.

`preprocessing`   checks a request and turns its text into ids
`card_model`      owns the pool, opens a session for each request, streams what is committed
`postprocessing`  turns deltas into the tensors that clients know
`unary`           the models that answer once; `unary_fronts` says which tensors each has
`remote_model`    puts what devices draft into the pool
`engine_model`    the draft and the target: each an `engine_process` that runs a `loaded_model`
`attach`          `card` asks the engines in to its pool; `denials` counts those it refuses
`triton_request`  Triton's requests and responses, as little as possible of them
"""
