"""The part of Model that every predict goes through, and what stands beside it.

thread_state.py   one thread's way through a model: every predict, and what it checked last
signature.py      what a model accepts and gives; fitting.py: what is passed, held against it;
                  resizing.py, sizes.py: the same at other shapes
values.py         sequences, optionals and maps
descriptions.py   inputs and outputs as Tensor and TensorMeta
inputs.py         the input tensors that a thread was given, and their resize
model_info.py     the texts of Model.get_model_info
memory.py         memory on devices: allocated and copied by the backend that has it
foreign.py        tensors of other libraries, by the protocols below
dlpack.py         DLPack and __cuda_array_interface__
extensions.py     what wraps a model's predict, where the user switched it on; wrapping.py: how
"""
