"""From tensors to a stream of text, without Triton: all of it runs in a test.

`wire`          the one table of what a request may say; `allowed` holds the checks of its values
`parsing`       tensors become a request or a `refusal`
`slot_request`  from what a client asked for to what a session decodes, and how
`guide_check`   tries guides in another process before a slot is opened
`guide_failure` what a client hears when its guide ends its text
`vocabulary`    the target's tokens
`sessions`      slots, the queue in front of them, and the clients that wait in it
`follower`      the one task that turns commits into responses
`streams`       one request's text; `gathering` says how long it is gathered
`delta`         what a response says; `trace` what speculation did
`unary`             what clients that do not stream send and get
`remote_request`    what a drafting device sends
`chat_parameters`   how clients learn the chat template
"""
