"""This machine: what processes and threads on it need, whatever they compute.

cpus.py      the CPUs that this process may use
threads.py   how many threads that makes for each of several workers
child.py     Python processes started to do one thing
fork.py      what becomes of built models in a forked child
"""
