"""Requests of many clients on built models.

parallel_runner.py   ModelParallelRunner: one model a device
multi_model.py       MultiModelRunner: a file of several models; model_chain.py: those that run
                     one after the other
lane.py         a model and its semaphore: where all requests meet, first come, first served
workers.py      the threads that run what has waited
submission.py   requests that no thread waits with: futures, deadlines, cancels
batching.py     several requests in one run
batchable.py    may a model's requests share a run, and does it pay?
statistics.py   counts and times of requests
"""
