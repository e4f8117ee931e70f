"""Attention modules: multi-head attention, normalizers, learned alphas, positions, scaling, caches and layers."""
