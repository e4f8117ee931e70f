"""Text and ids. In: lines of text files. Out: subword ids and back; `subwords.py` is the vocabulary, `lines.py` the reader."""
