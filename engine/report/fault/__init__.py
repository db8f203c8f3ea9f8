"""Find the node that sets two sides apart: `engine.diff`, and the command.

1. Both sides run as they are. If all outputs are within the tolerances, nothing is apart
   (unless the values inside are to be looked at too).
2. The value where they part. Each side is built once more with all inner values as outputs. If that
   changes neither side's results (it may, since a runtime cannot fuse nodes whose results are
   read), the first value that is apart is known. Else the sides are compared on prefixes of the
   graph, by bisection: each prefix is a model of its own, which the backend builds as it likes, and
   only the values at its end are read.
3. The block that is needed. A value that is apart may be the end of an error that has grown through
   many nodes. So the end of the graph up to that value runs with b's own values as inputs; the
   shortest end that is still apart, by bisection again, begins at the node that the error needs.
4. The kind of fault. One node: it is wrong by itself. Several: with their inner values as outputs
   the error stays, and then each node's own error, computed with b's values as its inputs, tells
   one bad node from an error that grows; or it vanishes, and the nodes are wrong only together, as
   in a fused kernel.

diff.py        engine.diff, and the order of the steps
sides.py       a side: its graph, and runs of parts of it
pairs.py       the values that two graphs have in common, and the places to cut both
search.py      steps 2 and 3, the bisections
blame.py       step 4
found.py       the typed result
spread.py      how an error is distributed: sizes, ULPs, where
ranks.py       the ranks of a sliced model as one model, each with its name
reproducer.py  the block as files, with its inputs, and the command that shows the fault
"""
