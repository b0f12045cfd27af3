"""The benchmark: every system of this engine, and its peers, side by side in one run.

`command`       the command line
`suite`         ours and the peers, one stream: chooses settings, lets them compete, reports
`family`        systems of the literature, which are listed in `systems`, beside each other
`streams`       many streams at once; its figures (`streams_figures`)
`terminal`      what the commands share; `progress`: how far the work is
`prompts`       what is decoded
`measurement`   what one completion tells
`contest`       the order in which contenders take turns
`rounds`        how settings are chosen, and how long it goes on
`line_up`       who competes, with which settings
`in_process`    both loops without a server, on the pair's `engines`; what a draft did (`activity`)
`through_grpc`  a real server through the supervisor, and the client
`peers`         what a user would run instead, in environments of their own
`drafts`        made of the pair's own: a smaller one, and one of random weights, the worst case
`foresight`     how often the draft, reading along, would have picked the target's token
`figures`       from completions to rows
`ratios`        how much faster one system is than another, with intervals
`cells`         tables as texts
`report`        tables for the terminal, Markdown and JSON
`names`         what systems are called
`conditions`    what was run, on what machine, with which settings
"""
