"""Several replicas on this machine, and SGLang's model gateway in front of them.

`command`      the command line
`running`      the life of a fleet: start, wait until all are ready, stop
`replica`      one server with OpenAI's interface, as a child process
`router`       the router, as a child process
`environment`  the router's environment, `.venv-router`
"""
