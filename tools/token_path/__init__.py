"""Which modules one request passes between a client and its tokens, traced on a real server.

./scripts/token_path              the modules, process by process
./scripts/token_path --functions  with the functions that ran
"""
