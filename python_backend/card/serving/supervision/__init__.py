"""Keeps one service alive. `states` is the map: what the supervisor does, and what ends it.

`supervisor` runs that machine, `startup` judges a start, `running` asks one run of the server,
`watch` judges what it says, `recovery` brings models back, `health` tells the outside, `residue`
removes what dead processes leave. `processes` finds and kills the stubs, `server`, `guard` and
`model_files` each run a child process, `triton_server` says how Triton is started and `repository`
speaks to it.
"""
