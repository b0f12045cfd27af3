"""Tools: functions of the client that the model may call.

`definitions` what a request says of its tools and of which must be called
`written`     tools and calls as plain text and as a grammar
`calls`       calls found in a text, while it arrives
`answer`      the JSON of a chat in which functions are called
"""
