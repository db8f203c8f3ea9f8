"""What runs a built model: the part of Model that every predict goes through.

thread_state.py   one thread's way through a model: every predict, and what it checked last
signature.py      what a model accepts and gives
values.py         sequences, optionals and maps
descriptions.py   inputs and outputs as Tensor and TensorMeta
memory.py         memory on devices: allocated and copied by the backend that has it
foreign.py        tensors of other libraries, by the protocols below
dlpack.py         DLPack and __cuda_array_interface__
extensions.py     what wraps a model's predict, where the user switched it on
"""
