"""Many runs: sweeps over settings, and the cheapest configuration that keeps its targets."""
