"""Ids of the special tokens, the same in the tokenizer and the models."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
