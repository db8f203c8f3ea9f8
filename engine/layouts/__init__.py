"""Layouts: in which form parts of a tensor are held, and how operators carry a divided axis on.

states.py   the form of a tensor: whole, divided along an axis, or the terms of a sum
rules/      for each operator, in which states of its inputs which outputs follow

batch/      the proof that the samples of a batch do not meet in a model

The slicer chooses among all the ways of the rules (engine/sharding/slicing). Runners and pipelines
that share or cut batches ask for the proof.
"""
