"""The target's side: plan, propose, forward, verify, commit, observe.

`loop`           all sessions, one pass after the other
`session`        one of them: its query, its commits, its KV cache
`open_sessions`  which there are: those of the open slots, and how much of a prompt they read
`from_settings`  rules, controller and n-grams, as the settings say
"""

from card.decoding.loop import TargetLoop, TargetTimes
