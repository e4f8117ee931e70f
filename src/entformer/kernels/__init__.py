"""Arithmetic: no parameters and no configuration live here. `entmax` maps rows of scores to weights."""
