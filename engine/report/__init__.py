"""Looking at models, backends and speed: typed results that read well, from which commands print.

summary.py      Model.summary; inspection.py: engine.inspect, the same of a file
profiling.py    Model.profile: time by kernel
comparison.py   engine.compare; differences.py: of two outputs; parts.py: of sequences and maps
measurement.py  engine.bench; clients.py: threads that call again and again; sweep.py: rates;
                scenarios.py: MLPerf's; served.py: a model on a server
speed/          comparisons of speed that tell a change from noise
choice/         target "auto": the fastest of the installed backends; tuning/: engine.tune
observing/      observers, which are told what models and runners do
filled.py       inputs that nobody gave: zeros, ones or random numbers; archive.py: .npz files
machine.py      engine.devices
fault/          engine.diff: the node that sets two sides apart
diagnosis/      engine.doctor: what is wrong with this machine
cache_state.py  why the compile cache has a model, or not
explanation/    engine.explain: where each node runs, why, and what it costs; its page
"""
