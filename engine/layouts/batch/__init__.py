"""The proof that the samples of a batch do not meet in a model: the batch axis is followed.

    proof = prove(model, {"x": 0})     # axis 0 of input x is the batch
    proof.reason                       # "" where no sample depends on another, else which node

Each tensor is the same for every sample, or divided along one axis, each sample's part in order
and of one size, or it is not known to be either, and then nothing that is made of it is. Shapes
are followed with the batch as a symbol (sizes.py), so that Reshape and Expand are understood
wherever their shapes come from. The values of weights say nothing where they may change.

The rules are not those of the slicer (engine/layouts/rules), which divide axes of known sizes
among ranks, choose among many ways, and change nodes for it: here every size counts at once, nodes
stay as they are, and what shapes are computed from is followed with what is divided. Tests hold
the two to each other, operator by operator.

values.py  what is known of a tensor; sizes.py: sizes that are open; node.py: one node
walk.py    through graphs, bodies and functions; rules/: the operators; proof.py: the answer
"""

from engine.layouts.batch.proof import OutputAxis, Proof, prove

__all__ = ["OutputAxis", "Proof", "prove"]
