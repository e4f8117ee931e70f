"""`ef.show`: the report's view of attention heads for any attention weights, in a notebook or as an HTML file.

forms.py turns what users have (arrays, lists of layers, outputs of models, supports, traces, records) into the sparse rows of
panels.py, tokens.py names queries and keys, view.py makes the page from the report's components and `page/`. Needs torch and
numpy only.
"""
