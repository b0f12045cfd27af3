"""`scripts/plan`: a discrete-event model of the two loops.

command     the command line
checking    predicts what a benchmark measured, and compares
predicting  predicts hardware that is not here, and recommends settings
report      tables and JSON; everything predicted is labelled so
measuring   measures a pair's foresight (the only module that runs a model)
results     a benchmark's result, as far as it is needed
hardware    devices, models, placements; what a pass costs there
costs       what a pass costs, as measured
scenario    what a simulation is given, and what it counts
simulation  both loops in virtual time
candidates  the candidate tree and proposals, as the simulation needs them
acceptance  how a draft foresees a text: measured, or drawn in the likeness of a measured one
clock       virtual time, processes, shared devices
"""
