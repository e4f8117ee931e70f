"""From source ids to text: beam search, translation of lines, scores of translations, attention of a translation."""
