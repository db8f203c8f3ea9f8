"""engine.explain: what each node of a model costs, where it runs, and why.

    found = explained(model)         # a built model
    found.nodes, found.by_operator   # found.save_html("model.html") draws it

explaining.py  of a built model; found.py: the answer, as text and as plain values, with node.py;
               explanation.py: the answer with its pictures
flops.py       operations by operator, with formulas.py and work.py; traffic.py: bytes;
               tensors.py: the shapes that both need; roof.py: the rates of this processor;
               times.py: the times of kernels
inner.py       nodes inside of nodes; bodies.py: the bodies of a Loop and the like, and how often
               they run; computed.py: counts and conditions that follow from sizes
page.py        the page with the graph, of page/; layout.py: where its boxes stand; pieces.py,
               families.py: the boxes and their colours; thumbnail.py: the picture in a notebook
"""
