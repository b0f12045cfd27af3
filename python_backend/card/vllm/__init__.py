"""CARD around vLLM: vLLM decodes in a process of its own, and CARD gives it candidates.

`target`    the side of Triton's process: starts vLLM's process and watches it
`__main__`  vLLM's process, with `service` as its loop
`loop`      the target's loop over vLLM: query, one step of vLLM, commit
`engine`    vLLM's engine core, and the requests in it
`proposer`  what makes vLLM verify candidates

`target` alone runs without vLLM.
"""
