"""alpha-entmax of rows: scores and alpha in, weights out. The public function is `api.entmax`."""
