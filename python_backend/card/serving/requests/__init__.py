"""From tensors to a stream of text, without Triton, so that tests can run all of it.

`wire`          the one table of input tensors; `allowed` checks their values
`parsing`       turns tensors into a request, or raises a `refusal`
`slot_request`  turns a client's request into a session's request
`guide_check`   compiles guides in another process before `card` opens a slot
`guide_failure` the error of a text that its guide ended
`vocabulary`    the target's tokens
`sessions`      slots, the queue in front of them, and the clients that wait in it
`follower`      the one task that turns commits into responses
`streams`       one request's text; `gathering` computes the interval of its responses
`delta`         the content of a response; `trace` the events of speculation
`unary`             requests and answers of clients that do not stream
`remote_request`    the tensors of a drafting device
`chat_parameters`   publishes the chat template to clients
"""
