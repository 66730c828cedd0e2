"""Instances, the fleet of a run, and hand-overs between instances."""
