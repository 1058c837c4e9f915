"""The load generator: a precomputed schedule played against one OpenAI-compatible endpoint, on one clock."""
