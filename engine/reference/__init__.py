"""onnx's reference evaluator behind the contract's classes, for backends that stand on it.

evaluator.py   the model, the executable and the context
loop.py        the operator Loop, where onnx's own implementation is wrong
"""
