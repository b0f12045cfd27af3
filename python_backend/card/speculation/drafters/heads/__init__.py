"""Drafts that read the target's hidden states.

`formats`  what a head's configuration says, in the formats of several projects
`reading`  reads and checks a head's configuration
`loading`  reads a head's tensors; the embedding may be the target's
`blocks`   the layers that heads share, as torch modules
`eagle3`   EAGLE-3 and P-EAGLE
`pard2`    PARD-2
`engine`   runs a head behind the interface of engines: rows of sessions, and its own KV
`drafter`  grows trees with it, as `drafters/tree.py` does with a draft model

A head reads states that may come late or never. A row without its token's states takes the state
that the head itself computed for the row before, so late states cost agreement and nothing else.
"""
