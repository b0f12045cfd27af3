"""CARD around vLLM, in a process of its own: it decodes with CARD's candidates, or it drafts.

`process`   the side of Triton's process: starts vLLM's process and watches it
`__main__`  vLLM's process
`loop`      the target's loop over vLLM: query, one step of vLLM, commit
`engine`    vLLM's engine core, and the requests in it
`proposer`  what makes vLLM verify candidates
`chains`    the requests of a draft under vLLM

`process` alone runs without vLLM.
"""
