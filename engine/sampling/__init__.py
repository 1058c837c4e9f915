"""Vectorised sampling on torch: :class:`engine.sampling.sampler.Sampler` is the whole interface."""
