"""A real single-GPU inference engine on the scheduler core the simulator uses."""
