"""Resolution of a configuration into simulation inputs: requests, KV capacity, step times, diffusion."""
