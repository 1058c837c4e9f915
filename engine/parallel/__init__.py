"""Tensor parallelism: one model over several processes, one scheduler (rank 0's)."""
