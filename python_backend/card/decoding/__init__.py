"""The target's side: plan, propose, forward, verify, commit, observe.

`loop`           all sessions, one pass after the other
`session`        one of them: its query, its commits, its KV cache
`open_sessions`  which there are: those of the open slots
`prefill`        how much of their prompts sessions read in a pass
`draft_wait`     how long a pacing that waits for the draft does so
`from_settings`  rules, controller and n-grams, as the settings say
"""

from card.decoding.loop import TargetLoop, TargetTimes
