"""Measurement of step times by batch composition: a plan of shapes, and the rounds that measure them."""
