"""ONNX without the onnx package: what a model file says, and whether it is safe to hand on.

Everything that a runtime looks at for inference is read: graphs, subgraphs, functions, tensors in
attributes. Training information, documentation and annotations are passed over.

By hand and not with the onnx package, because that copies each weight into memory before anything
can be checked, follows external data wherever it leads, has no limits (names, counts, depth, what a
few bytes expand to), takes 0.2 s to import, and is not needed by whoever only runs models. Reading
a graph of 10,000 nodes costs 0.5 to 1.5 times onnx.load with its checker; weights cost nothing.

model.py      the file as a whole; graph.py, node.py, tensor.py, sparse.py, value.py: its messages
scope.py      names that nodes may read; expansion.py: what little bytes could become;
              folding.py: what computing constants takes
external.py   data in files beside the model; limits.py; reading.py: small decoders
writer.py     values in, bytes out; graph_info.py: the description of a model just written
rewrite.py    changes without parsing; weights.py, inline.py: weights taken out and put in
graphs.py     with the onnx package: utilities; infer.py: types; repair.py: irregular files;
              safe_inference.py: shape inference that a hostile model cannot crash
"""

from engine.formats.onnx.model import OnnxModel, read_model, read_part

__all__ = ["OnnxModel", "read_model", "read_part"]
