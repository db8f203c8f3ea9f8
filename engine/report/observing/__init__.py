"""Observers, which are told what models and runners do.

observers.py     the observers that a user has switched on, and what goes wrong in them
observation.py   of one model or runner: its build, updates and close
request.py       of one request, from its coming to its end
thread.py        a predict of a model by itself, as a request
"""
