"""The slicer: one model in, the models of N ranks out, whose joint result is the original's."""
