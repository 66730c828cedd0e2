"""Training of the tiny models that the engine is tested with. Their checkpoints lie in `engine/tiny`."""
