"""alpha-entmax of rows: scores and alpha in, weights out. `api.entmax` is the door; the other files are behind it."""
