"""The supervisor and what it is made of, from decisions down to processes.

`supervisor`    keeps one service running until it is told to stop
`policy`        when to recover what: pure, without processes, clocks or I/O
`startup`       one start of the server, and what may go wrong with it
`reloads`       reloads in the background: begun as the policy decides, their ends told to it
`recovery`      one model killed, unloaded, loaded and seen well again
`service`       one run of the server and all that it is watched by
`heartbeats`    the life of the engines and of `card` as the cache pool tells it
`stubs`         the processes that serve the models, found among the server's children
`triton_server` finds tritonserver on this machine, and says how it is started
`server`        the tritonserver process: started, drained, killed
`command_line`  takes a secret out of a child's command line
`stop_requests` requests to stop, as signals make them
`tether`        ties the life of a child process to its parent's
`repository`    Triton's model control over HTTP
`probe`         asks the server over and over whether it serves
`guard`         the process in front of gRPC: started, listened to, started again
`starvation`    which part of a process's silence is due to the machine
`descriptors`   how many files and connections its processes may have open
`residue`       what a dead supervisor or stub leaves behind, and its removal
`user_cache`    where what models found out at load outlives a run
`sighting`      what is told to the outside: the state of the service and of every model
`health`        liveness, readiness and metrics for the outside
`figures`       the supervisor's metrics
`journal`       one line per event on standard error
`notices`       what the processes of a service tell each other outside of any request
`load_failure`  why a model cannot be loaded
`prerequisites` what this machine must offer, `model_files` what the pair's files must be
"""
