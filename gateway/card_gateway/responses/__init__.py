"""OpenAI's `/v1/responses`: a chat in other words, and an answer as events.

`items`   what a conversation consists of, and the messages that it stands for
`body`    what a request may say, and the chat that it stands for
`refusal` errors of that chat, under this route's names of its fields
`memory`  items of earlier answers, which clients name by their ids
`output`  the answer while it is written: its items, and the events that tell of them
`stream`  server-sent events
"""
