"""Attention that never stores the L x L matrix: q, k, v and alpha in, output out. `api.attention` is the door."""
