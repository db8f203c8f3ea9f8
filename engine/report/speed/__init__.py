"""Comparisons of speed that tell a change from noise: side by side, and with a saved run.

interval.py    ratios with their intervals, and what may be said of them
rounds.py      times functions in turn, in an order that changes
contest.py     contenders that are built anew again and again, until the ratios are known
reference.py   a fixed computation, by which runs of different days are compared
saved.py       a run in a file, and one of today held against it
machine.py     what a speed depends on beside the model
deviation.py   how far a percentile would be off in another run
"""
