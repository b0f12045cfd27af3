"""What engines of other projects have in common: they schedule, keep KV and sample by themselves.

`admission`  what a request may not ask of such an engine, and how it is then decoded
`drafts`     a draft under such an engine: requests that continue texts
"""
