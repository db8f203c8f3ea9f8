"""Requests of many clients on built models.

runner.py            the common part of the runners
parallel_runner.py   ModelParallelRunner: one model a device
multi_model.py       MultiModelRunner: a file of several models; model_chain.py: those that run
                     one after the other
request_queue.py     where all requests for a model meet, first come, first served
built_model.py       a model as what a queue runs
pending.py           submitted requests, and those handed off to a worker; threads.py: the workers
request_future.py    a submitted request as a future; callbacks.py: its done callbacks
batching.py          several requests in one run; shared_runs.py: the build that allows it
batchable.py         may a model's requests share a run, and does it pay?
statistics.py        counts and times of requests
"""
