"""`engine.tune`: finds the settings that serve a model best on this machine, and writes them down.

tuning.py      all of it in order, and the result
goal.py        the load that a tuning is for, and what the user allows
space.py       the setups that are tried
forms.py       the model quantized by the converter
tournament.py  the contest: tries setups, keeps the best, lets these compete, proves the winner
contender.py   a setup that runs under the load
rounds.py      timings of several in interleaved rounds
order.py       confidence intervals of medians, and bounds of a p99, by the order of values
proof.py       the last comparison: when it is looked at, and what it proves
config_file.py the configuration that is written
taking.py      a configuration that is read: for which model and machine it is, and what it sets
"""
