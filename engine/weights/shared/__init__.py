"""Weights that are lent to other processes by a handle.

dry_run.py          the workspace of a model, measured in a process of its own
handle.py           what a build lends or borrows, as a configuration asks for
handle_settings.py  its settings
lent.py             what is lent, as it goes from one process to another
broker.py           the master's socket: gives what is lent to the processes of the list
lender.py           the master's build
borrower.py         a slave's build
private.py          folders of one process beside the compile cache
"""
