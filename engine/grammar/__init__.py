"""Constrained decoding: outputs that conform to a JSON schema, a regular expression or a grammar.

Start with `params.py` (a request's parameters), then `state.py` (the state of one output in its grammar),
then `masks.py` (the bitmask of a batch). `compiler.py` compiles grammars with xgrammar, which is imported
there and only on first use.
"""
