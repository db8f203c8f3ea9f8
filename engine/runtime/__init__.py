"""What runs a built model: the part of Model that every predict goes through.

thread_state.py   what one thread needs, and what it checked and bound last
signature.py      what a model accepts and gives
values.py         sequences, optionals and maps
"""
