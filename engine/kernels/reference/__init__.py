"""Torch references of all kernels: the oracle of the tests, and the engine's path on CPU."""
