"""Datasets, preprocessing and batching of parallel text."""
