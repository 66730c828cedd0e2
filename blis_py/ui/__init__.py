"""The interactive page: a local server that simulates again while settings are moved."""
