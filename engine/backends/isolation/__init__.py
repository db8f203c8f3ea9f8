"""Backends in processes of their own: a crash or a hang costs that process and no other.

backend.py   a backend whose models are built and run in workers; process.py: a worker, as its
             parent sees it; worker.py: the worker's side
probe.py     what backends and the entries of other doors say of themselves, in processes
listing.py   all of them so: engine.backends()
"""
