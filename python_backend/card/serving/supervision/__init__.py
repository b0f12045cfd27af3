"""Keeps one service alive. `states` is the map: what the supervisor does, and what ends it.

`supervisor` runs that machine, `startup` judges a start, `running` observes one run of the server,
`watch` judges the observations, `recovery` reloads models, `health` answers probes, `residue`
removes the files of dead processes. `processes` finds and kills the stubs, `server`, `guard` and
`model_files` each run a child process, `triton_server` builds Triton's command line and
`repository` calls Triton's model control.
"""
