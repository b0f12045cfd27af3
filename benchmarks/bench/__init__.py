"""The benchmark: every system of this engine, and its peers, side by side in one run.

`suite`         ours and the peers; `family`: systems of the literature; both run a `contest`
`streams`       many streams at once
`runner`        the order in which contenders take turns, and how settings are chosen
`line_up`       who competes, with which settings; `systems`: the systems of the literature
`in_process`    both loops without a server, on the pair's `engines`
`served`        a real server and its client; `device`: one that drafts, behind a `delaying_proxy`
`peers`         what a user would run instead, in environments of their own
`prompts`       what is decoded; `drafts`: made of the pair's own
`agreement`     how often the draft, reading along, would have picked the target's token
`measurement`   what one completion tells; `figures`: rows of them
`ratios`        how much faster one system is than another, with intervals
`report`        tables for the terminal, Markdown and JSON; `conditions`: what ran where
`terminal`      what the commands share; `progress`: how far the work is
"""
