"""Parallel text and batches. In: text files or a named corpus. Out: a prepared folder of ids, and `Batch`es from it."""
