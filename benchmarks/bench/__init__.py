"""The benchmark: `suite`, `family` and `streams` make a line-up for a `contest`.

The `runner` lets all contenders write the same texts in turns; `figures` and `report` say what
came.
"""
