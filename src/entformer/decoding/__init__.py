"""Beam search, translation, scoring and attention records."""
