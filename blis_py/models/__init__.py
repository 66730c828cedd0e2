"""Model architectures: HuggingFace configs, sizes, number formats of weights."""
