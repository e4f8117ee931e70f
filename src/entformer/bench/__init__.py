"""Benchmarks: time relative to a baseline measured in the same run."""
