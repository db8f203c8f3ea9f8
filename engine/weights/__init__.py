"""Weights beyond one model: the compile cache."""
