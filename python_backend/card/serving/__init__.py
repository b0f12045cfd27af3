"""What serves the method: three rooms, and `supervisor`, the command that starts it all.

`triton`       what Triton calls: its models; the only place that knows Triton's Python interface
`supervision`  keeps one server and its models alive
`requests`     from tensors to a stream of text
`metrics`      what `card` counts

A room imports from those below it alone, and `metrics` from `requests`. `log` (one line per event),
`geometry` (the pool's sizes) and `found_pool` (the pool of the present `card`) serve all of them.
"""
