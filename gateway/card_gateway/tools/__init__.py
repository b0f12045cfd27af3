"""Tools: functions of the client that the model may call.

`definitions` what a request says of its tools and of which must be called
`written`     tools and calls as plain text, for a chat template that does not know them
`grammar`     what a text must look like in which a function must be called
`refusal`     what the server says of that grammar, in words of the tools
`calls`       calls found in a text, while it arrives
`answer`      the JSON of a chat in which functions are called
"""
