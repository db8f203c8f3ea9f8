"""Looking at models, backends and speed: typed results that read well, from which commands print.

inspection.py   engine.inspect: a summary of a file
comparison.py   engine.compare
machine.py      engine.devices
measurement.py  engine.bench; clients.py: threads that call again and again
"""
