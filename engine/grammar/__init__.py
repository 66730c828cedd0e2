"""Constrained decoding: outputs that keep to a JSON schema, a regular expression or a grammar.

Start with `params.py` (what a request asks for), then `state.py` (where one output stands in its grammar),
then `masks.py` (the bitmask of a batch). `compiler.py` makes grammars with xgrammar, which is imported there
and only when a request asks for one.
"""
