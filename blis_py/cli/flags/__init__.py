"""Flags: their tables, the parser and the help made from them, and the configuration that they give."""
