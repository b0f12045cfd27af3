"""The benchmark: every system of this engine, and its peers, side by side in one run.

`command`       the command line; `suite` and `streams` are its subcommands
`terminal`      what the commands share
`progress`      how far the work is
`prompts`       what is decoded
`measurement`   what one completion tells
`engines`       the pair's engines, one for each role and thread count
`in_process`    both loops without a server
`watch`         who was busy when, for runs that are not timed
`through_grpc`  a real server through the supervisor, and the client
`peers`         what a user would run instead, in environments of their own
`line_up`       who competes, with which settings
`contest`       the order in which they take turns
`extremes`      the worst case, the timeline, the sweep
`unrelated`     a draft of random weights
`limits`        memory bandwidth, and a step's own linear layers (`linears`)
`foresight`     how often the draft, reading along, would have picked the target's token
`group`         what several contenders made of the same texts
`figures`       from completions to rows
`standings`     all systems, ours and the peers
`report`        tables for the terminal, Markdown and JSON; `suite_report`: those of the suite
`plots`         pictures
`names`         what systems are called
`conditions`    what was run, on what machine, with which settings
"""
