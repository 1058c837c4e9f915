"""Triton kernels of the GPU path, and the backend made of them.

Nothing is imported here: triton and torch are loaded by whoever imports a module of this package, which the
executor's factory does only once the backend is chosen.
"""
