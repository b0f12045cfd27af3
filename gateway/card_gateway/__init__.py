"""The OpenAI-compatible route to CARD on Triton: HTTP and JSON in front, gRPC behind.

`command`    the command line: settings, then uvicorn
`app`        which path leads to which route
`layers`     names each request, and decides which requests are answered
`protocol`   HTTP with bounds on connections
`routes`     the routes that generate text
`operations` the routes for operators: metrics, version, model, tokens of a text
`reading`    the body of a request, read and checked beside the event loop
`limits`     how much a request may hold, and what is not offered
`sampling`   the fields of all requests for text, and the request to Triton
`structured` what a text must be: JSON, a schema, an expression, a grammar
`body`       the bodies of completions and chats
`messages`   the messages of a chat
`template`   the chat template of the model: messages and tools become one prompt
`tools`      functions that the model may call
`responses`  `/v1/responses`: the same chats in other words
`generation` the texts of one request, cancelled when its client leaves
`tokens`     the texts of tokens, in log-probabilities and in what speculation did
`answer`     the JSON of completions, chat completions and their chunks
`events`     server-sent events
`figures`    counts of an answer, and metrics
`replica`    figures of the server, under the names that pickers of endpoints read
`errors`     every failure in OpenAI's shape
`page`       what a browser gets at the root
"""

from card_gateway.app import create_app
from card_gateway.routes import Gateway

__all__ = ["Gateway", "create_app"]
