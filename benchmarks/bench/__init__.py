"""The benchmark: every system of this engine, and its peers, side by side in one run.

`suite`, `family` and `streams` are commands. Each makes a line-up (`line_up`, `systems`, `peers`,
`served`, `device`) for a `contest`: the `runner` lets all write the same texts in turns, `figures`
and `report` say what came. `in_process` holds both loops without a server.
"""
