// alpha-entmax of one row of scores, the same equations as kernels/entmax/reference.py.
// In: scores (numbers; -Infinity where masked) and alpha >= 1. Out: weights that sum to one, exact zeros outside the support;
// all zeros for a row without an allowed key. With e = alpha - 1 the weights are p_i = [1 + e (s_i - c)]_+ ^ (1/e)
// (e = 0: exp(s_i - c)), and c is the one number that makes them sum to one.

const EntmaxSolver = (() => {
  "use strict";

  const HALVINGS = 60; // of an interval no longer than ln n: the rest is below the rounding of c

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  const weightsAt = (u, c, e) =>
    u.map((value) => {
      const y = e * (value - c);
      return y > -1 ? Math.exp(e ? Math.log1p(y) / e : value - c) : 0;
    });

  function entmax(scores, alpha) {
    const e = alpha - 1;
    const top = scores.reduce((best, score) => Math.max(best, score), -Infinity); // NaN if there is one
    if (top === -Infinity) return new Float64Array(scores.length);
    if (Number.isNaN(top) || Number.isNaN(e)) return new Float64Array(scores.length).fill(NaN);
    const u = Float64Array.from(scores, (score) => (score === top ? 0 : score - top)); // +inf entries share the mass
    const allowed = u.filter((value) => value > -Infinity).length;
    let low = 0; // where the sum is at least one
    let high = e ? -Math.expm1(-e * Math.log(allowed)) / e : Math.log(allowed); // (1 - n^-e)/e, where it is at most one
    for (let step = 0; step < HALVINGS; step++) {
      const middle = 0.5 * (low + high);
      if (sum(weightsAt(u, middle, e)) >= 1) low = middle;
      else high = middle;
    }
    const weights = weightsAt(u, low, e);
    const total = sum(weights); // beyond alpha = 2 rounding of c can leave it far from one
    return weights.map((weight) => weight / total);
  }

  return { entmax };
})();
