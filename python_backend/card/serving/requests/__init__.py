"""From tensors to a stream of text, without Triton, so that tests can run all of it.

`wire`          the one table of input tensors; it reads them, or raises a `refusal`
`slot_request`  turns a client's request into a session's request
`guide_check`   compiles guides in another process before `card` opens a slot
`vocabulary`    the target's tokens
`sessions`      slots, the queue in front of them, and the clients that wait in it
`follower`      the one task that turns commits into responses
`streams`       one request's text, gathered over an interval
`delta`         the content of a response; `trace` the events of speculation
`unary`         requests and answers of clients that do not stream
`remote`        the messages of drafting devices
"""
