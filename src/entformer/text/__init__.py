"""Text files, subword tokenizer, and formatting of numbers."""
