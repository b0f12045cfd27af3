"""The OpenAI-compatible route to CARD on Triton: HTTP and JSON in front, gRPC behind.

`command`    the command line: settings, then uvicorn
`app`        the routes
`admission`  who may ask, and how much at a time
`identity`   which request is which, and the trace that it belongs to
`body`       what a request may say, and what becomes of it on Triton's wire
`neutral`    what asks for nothing, and is ignored
`messages`   what a chat says
`template`   the chat template of the model: messages and tools become one prompt
`tools`      functions that the model may call
`responses`  `/v1/responses`: the same chats in other words
`generation` the text of one request, cancelled when its client leaves
`details`    tokens and their log-probabilities, as Triton tells them
`protocol`   HTTP that nobody answers behind a refusal
`several`    several texts of one request, side by side
`tokens`     the texts of tokens, in log-probabilities and in what speculation did
`scores`     how log-probabilities are told
`usage`      what an answer took, and what speculation made of it
`answer`     the JSON of completions, chat completions and their chunks
`events`     server-sent events
`page`       what a browser gets at the root
`operations` metrics, version, tokens of a text
`figures`    what is counted
`errors`     every failure in OpenAI's shape
"""

from card_gateway.app import Gateway, create_app

__all__ = ["Gateway", "create_app"]
