"""Studies of many runs: sweeps over settings, and the cheapest configuration that meets its targets."""
