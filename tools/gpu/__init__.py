"""`scripts/gpu_check`: is the torch engine right on this device, and how fast is it?

command      the command line: which phases run in which order, and the verdict
phases       what each phase checks or times
apart        one phase in a process of its own, ended when its time is over
models       the engines that are compared, and the texts they read
arithmetic   logits against float32 on a processor; rows that do not influence each other
losslessness every way to decode writes what the target writes alone
steps        milliseconds of a step against what memory bandwidth allows
systems      tokens per second of every way to decode
peers        tokens per second of transformers, static and assisted
pairs        random pairs of real shapes at a chosen agreement
report       the device, and what was found, as lines and as JSON
"""
