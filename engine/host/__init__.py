"""This machine: what processes and threads on it need, whatever they compute.

cpus.py      the CPUs that this process may use
processor.py the processor, by name and by all that kernels are chosen by
threads.py   how many threads that makes for each of several workers
child.py     Python processes started to do one thing
worker.py    isolated workers: messages, time limits, how they ended; serve.py: their side
arena.py     values on their way between two processes, in memory without a name
lease.py     keeping writers from a file while a mapping of it is read
folder.py    temporary files and folders that do not outlive the process
version.py   the version of the core
fork.py      what becomes of built models in a forked child
"""
