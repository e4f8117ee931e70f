"""Arithmetic: no parameters and no configuration live here. `rows` maps rows of scores to weights."""
