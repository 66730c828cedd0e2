"""Records of a run: visits, steps and observers of every step."""
