"""Measurements. Ratios taken in one run on one machine, each with a signature of what was measured; nothing prints here."""
