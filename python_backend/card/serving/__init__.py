"""The Triton models and the supervisor: the only place that knows Triton.

`wire`, `delta`   the tensors that clients send and get
`preprocessing`   text to token ids, after every check
`card_model`      opens `sessions`, its `follower` turns their commits into `streams`
`postprocessing`  deltas to the tensors that clients know; `details` is their JSON
`unary`           the models that answer once: `unary_fronts` says which, `unary_request` what they
                  take, `unary_answer` what they give
`engine_model`    the draft and the target, each an `engine_process` that `attach` brings in
`supervisor`      the command that starts all this; `supervision` is what it is made of
"""
