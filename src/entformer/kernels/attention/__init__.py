"""Attention that never stores the L x L matrix: q, k, v and alpha in, output out. The public function is `api.attention`."""
