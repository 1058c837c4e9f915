"""Profiled windows: what operators and kernels did in a few steps, from any Kineto trace."""
