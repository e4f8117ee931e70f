// alpha-entmax of one row of scores, the same equations as kernels/entmax/reference.py.
// In: scores (numbers; -Infinity where masked) and alpha >= 1. Out: weights that sum to one, exact zeros outside the support;
// all zeros for a row without an allowed key. With e = alpha - 1 the weights are p_i = [1 + e (s_i - c)]_+ ^ (1/e)
// (e = 0: exp(s_i - c)), and c is the one number that makes them sum to one.

const EntmaxSolver = (() => {
  "use strict";

  const STEPS = 100; // Newton needs about five; halving an interval no longer than ln n, at most 60
  const CLOSE = 1e-14; // of the sum to one, and of the ends of the interval

  // Weights in place of `u`; returns their sum.
  function normalizeAt(u, c, e) {
    let sum = 0;
    for (let i = 0; i < u.length; i++) {
      const y = e * (u[i] - c);
      u[i] = y > -1 ? Math.exp(e ? Math.log1p(y) / e : u[i] - c) : 0;
      sum += u[i];
    }
    return sum;
  }

  // Newton's method, which never overshoots up to alpha = 2, in an interval that is halved where it would leave it.
  function solve(u, e) {
    let low = 0; // where the sum is at least one
    let high = -Math.expm1(-e * Math.log(u.length)) / e; // (1 - n^-e)/e, where it is at most one
    let c = low;
    for (let step = 0; step < STEPS && high - low > CLOSE; step++) {
      let [sum, slope] = [0, 0];
      for (const value of u) {
        const y = e * (value - c);
        if (y <= -1) continue;
        const p = Math.exp(Math.log1p(y) / e);
        sum += p;
        slope += p / (1 + y);
      }
      if (Math.abs(sum - 1) < CLOSE) return c;
      if (sum > 1) low = c;
      else high = c;
      c += (sum - 1) / slope;
      if (!(c > low && c < high)) c = 0.5 * (low + high);
    }
    return low;
  }

  function entmax(scores, alpha) {
    const e = alpha - 1;
    let top = -Infinity; // NaN if there is one
    for (const score of scores) top = Math.max(top, score);
    const weights = new Float64Array(scores.length);
    if (top === -Infinity) return weights;
    if (Number.isNaN(top) || Number.isNaN(e)) return weights.fill(NaN);
    const u = Float64Array.from(scores, (score) => (score === top ? 0 : score - top)); // +inf entries share the mass
    const possible = u.filter((value) => e * value > -1 && value > -Infinity); // the others are zero: c is not negative
    const c = e ? solve(possible, e) : 0;
    const total = normalizeAt(u, c, e); // beyond alpha = 2 rounding of c can leave it far from one
    for (let i = 0; i < u.length; i++) weights[i] = u[i] / total;
    return weights;
  }

  return { entmax };
})();
