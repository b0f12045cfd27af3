"""From tensors to a stream of text, without Triton: all of it runs in a test.

`wire`          the one table of what a request may say; `allowed` are the checks of its values
`parsing`       tensors become a request or a `refusal`
`derived`       what several fields of a request say together
`admission`     how a request may be decoded, by the settings and the target's engine
`slot_request`  from what a client asked for to what a session decodes
`guide_check`   guides are tried in another process before a slot is opened
`vocabulary`    the target's tokens
`sessions`      slots and the queue in front of them; `waiting`: is a client still there?
`follower`      the one task that turns commits into responses, woken by `listening`
`streams`       one request's text; `gathering`: for how long it is gathered
`delta`         what a response says; `details` is its JSON, `trace` what speculation did
`unary`                           what clients that do not stream send and get
`remote_request`                  what a device sends that drafts
`chat_parameters`                 how clients are told of the chat template
"""
