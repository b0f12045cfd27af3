"""`scripts/gpu_check`: is the torch engine right on this device, and how fast is it?

command  the command line: which phases run in which order, and the verdict
apart    one phase in a process of its own, ended when its time is over
phases   what each phase checks or times
checks   logits, rows that do not influence each other, texts that speculation does not change
timing   steps against what memory bandwidth allows; tokens per second of every way to decode
models   the engines that are compared, and the texts they read
report   the device, and what was found, as lines and as JSON
"""
