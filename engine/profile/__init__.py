"""Measures what a step takes, by what it consists of: a plan of shapes, and the rounds that measure them."""
