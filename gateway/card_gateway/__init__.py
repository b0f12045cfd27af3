"""The OpenAI-compatible route to CARD on Triton: HTTP and JSON in front, gRPC behind.

`command`    the command line: settings, then uvicorn
`app`        which path leads to which route
`routes`     the routes
`reading`    the body of a request, read and checked beside the event loop
`limits`     how much a request may hold
`admission`  which requests are answered
`identity`   the identifier of a request, and its trace
`sampling`   the fields of all requests for text, and the request to Triton
`body`       the bodies of completions and chats
`neutral`    fields that are not offered
`messages`   the messages of a chat
`template`   the chat template of the model: messages and tools become one prompt
`tools`      functions that the model may call
`responses`  `/v1/responses`: the same chats in other words
`generation` the text of one request, cancelled when its client leaves
`details`    tokens and their log-probabilities, as Triton tells them
`protocol`   HTTP with bounds on connections
`several`    several texts of one request, side by side
`tokens`     the texts of tokens, in log-probabilities and in what speculation did
`scores`     log-probabilities in an answer
`usage`      what an answer took, and what speculation made of it
`answer`     the JSON of completions, chat completions and their chunks
`events`     server-sent events
`page`       what a browser gets at the root
`operations` metrics, version, tokens of a text
`figures`    what is counted
`replica`    what the server behind counts, under the names that pickers of endpoints read
`errors`     every failure in OpenAI's shape
"""

from card_gateway.app import create_app
from card_gateway.routes import Gateway

__all__ = ["Gateway", "create_app"]
