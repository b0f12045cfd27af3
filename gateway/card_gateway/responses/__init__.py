"""OpenAI's `/v1/responses`: a chat in other words, and an answer as events.

`items`   what a conversation consists of, and items of earlier answers
`body`    what a request may say, and the chat that it stands for
`output`  the answer while it is written, and its events
"""
