"""All inputs of a simulation from a configuration: requests, KV capacity, step times, kinds."""
