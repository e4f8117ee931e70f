"""Arithmetic of a training step that torch does slowly on a CPU: dropout, and cross entropy of wide rows."""
