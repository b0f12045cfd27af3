"""The benchmark: every system of this engine side by side in one run.

`command`       the command line
`prompts`       what is decoded
`measurement`   what one completion tells
`in_process`    both loops without a server
`through_grpc`  a real server through the supervisor, and the client
`line_up`       who competes, with which settings
`contest`       the order in which they take turns
`foresight`     how often the draft, reading along, would have picked the target's token
`figures`       from completions to rows
`report`        tables for the terminal, Markdown and JSON
`conditions`    what was run, on what machine, with which settings
"""
