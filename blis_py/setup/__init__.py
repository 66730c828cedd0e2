"""From a configuration to everything a simulation needs: requests, KV capacity, step times, kinds."""
