"""Architectures of models: HuggingFace configs, sizes, number formats of weights."""
