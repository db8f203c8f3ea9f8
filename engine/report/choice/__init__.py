"""`target = "auto"`: the installed backends are tried on the model, and the fastest is chosen.

choosing.py    the targets of a build: from evidence that is kept, or by measuring
limits.py      the user's settings: time, error, background
setups.py      the backends and settings that are tried
contest.py     builds each setup and compares it with the default
running.py     a compiled setup: its outputs on generated inputs, the time of a call
duel.py        the times of two predicts, in interleaved rounds
errors.py      how far results are apart; exact.py: results in float64 to compare with
apart.py       the contest in a process of its own
behind.py      measuring after the build, while the model serves
evidence.py    the setups that were tried, their figures and the choice; as JSON
keeping.py     evidence in the compile cache and in this process, and all that it depends on
"""
