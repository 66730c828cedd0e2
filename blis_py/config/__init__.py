"""Configuration of a run: layers, models, checks, paths of files, policy bundles."""
