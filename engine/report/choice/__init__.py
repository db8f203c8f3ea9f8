"""`target = "auto"`: the installed backends are tried on the model, and the fastest is chosen.

choosing.py    the targets of a build: from evidence that is kept, or by measuring
setups.py      the backends and settings that are tried
contest.py     builds each setup and compares it with the default
duel.py        the times of two predicts, in interleaved rounds
evidence.py    the setups that were tried, their figures and the choice; as JSON
keeping.py     evidence in the compile cache and in this process, and all that it depends on
"""
