"""An emulated GPU: what the emulated `pycuda` and `tensorrt` beside it run on.

It is no GPU and no TensorRT. It computes with ONNX Runtime on the host, and it *enforces* what
the real ones demand, so that a mistake is an error here instead of a crash or a wrong number
there:

* device memory is an address space of its own, checked to the byte, never reused, poisoned;
* work on a stream happens when somebody waits for the stream, not before;
* nothing works without a current context; contexts are stacks, one a thread;
* what is freed where it cannot be freed is leaked, and counted.

Tests use `live()`, `violations()`, `fail()`, `counting()` and the environment variables

    ENGINE_EMULATED_DRIVER     on (default) | none: libcuda.so.1 is missing | no_device
    ENGINE_EMULATED_DEVICES    how many devices there are (default 1)
    ENGINE_EMULATED_MEMORY     bytes of memory of each (default 1 GiB)
    ENGINE_EMULATED_TENSORRT   version of the emulated TensorRT (default: the newest table)
    ENGINE_EMULATED_NCCL       version of the emulated NCCL as a number | none: there is no library
"""

from emulated_gpu import loader
from emulated_gpu.machine import MACHINE, Crash, counting, fail, live, violations

loader.install()

__all__ = ["MACHINE", "Crash", "counting", "fail", "live", "loader", "violations"]
