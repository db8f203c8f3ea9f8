"""An emulated Ascend machine: what the modules `acl.*` and the command `atc` beside it stand on.

It runs no NPU code. Models are executed with onnxruntime on the CPU, in float32 or rounded to
float16 as atc's command line says; what it is for is the contract around that. It is strict where
the vendor's code is, and stricter where that would crash or give a wrong result in silence:

* a return code where the vendor checks (`surface.json` beside this folder has the conventions);
* an `EmulatedFault`, kept in `machine.faults` as well, where the real one has undefined behaviour:
  memory used after free or past its end, a handle of the wrong kind, one model on two streams,
  inputs changed while a queued run may still read them, contexts destroyed under their streams.

`machine` is the handle for tests: devices on and off, failures on demand, what is still alive.
In a process of its own the environment variable EMULATED_ASCEND sets it up: a JSON object with
`devices`, `soc` and `memory_bytes`.
"""

from emulated_ascend.machine import EmulatedFault, Machine, machine

__all__ = ["EmulatedFault", "Machine", "machine"]
