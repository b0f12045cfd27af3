"""Several replicas on this machine, and SGLang's model gateway in front of them.

`command`       the command line
`running`       replicas and router as child processes, and the life of a fleet
`conversation`  a client that times the turns of conversations
"""
