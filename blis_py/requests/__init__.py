"""What is asked for: the table of requests that sources fill and clusters serve."""
