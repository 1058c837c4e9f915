"""Samplers that run beside the load and watch the machine."""
