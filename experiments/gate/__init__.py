"""The performance gate: is one revision of the engine as fast and as right as another?"""
