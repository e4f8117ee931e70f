// alpha-entmax of one row of scores, the same equations as kernels/entmax/reference.py.
// In: scores (numbers; -Infinity where masked) and alpha >= 1. Out: weights that sum to one, exact zeros outside the support;
// all zeros for a row without an allowed key. With e = alpha - 1 the weights are p_i = [1 + e (s_i - c)]_+ ^ (1/e)
// (e = 0: exp(s_i - c)), and c is the one number that makes them sum to one.

const EntmaxSolver = (() => {
  "use strict";

  const MOST_STEPS = 80;
  const SERIES_TERMS = 14; // of log1p(y)/y for |y| < 1/16: the rest is below 1e-17
  const TOLERANCE = 4 * Number.EPSILON;

  // log(1 + e x)/e. Near y = e x = 0 dividing by e would cancel, so its series in y is used there.
  function deformedLog(x, e) {
    const y = e * x;
    if (Math.abs(y) >= 1 / 16) return Math.log1p(y) / e;
    let series = 0;
    for (let k = SERIES_TERMS; k > 0; k--) series = series * y + (k % 2 ? 1 : -1) / k;
    return x * series;
  }

  // (exp(t e) - 1)/e, which is t at e = 0.
  function expm1Over(e, t) {
    const product = e * t;
    return Math.abs(product) < 1e-8 ? t * (1 + 0.5 * product) : Math.expm1(product) / e;
  }

  // The sum of the weights at c, and its slope in c without the sign; `weights` is filled on the way.
  function fill(u, c, e, weights) {
    let total = 0;
    let slope = 0;
    for (let i = 0; i < u.length; i++) {
      const x = u[i] - c;
      const inside = x > -Infinity && 1 + e * x > 0;
      const p = inside ? Math.exp(deformedLog(x, e)) : 0;
      weights[i] = p;
      total += p;
      if (inside) slope += p / (1 + e * x);
    }
    return { total, slope };
  }

  // Newton on the deformed logarithm of the sum, kept inside a bracket: beyond alpha = 2 the sum is not convex in c.
  function solve(u, allowed, e, weights) {
    let low = 0;
    let high = -expm1Over(e, -Math.log(allowed)); // (1 - n^-e)/e
    let c = 0;
    let best = 0;
    let bestGap = Infinity;
    let lastGap = Infinity;
    for (let step = 0; step < MOST_STEPS; step++) {
      const { total, slope } = fill(u, c, e, weights);
      const gap = Math.abs(total - 1);
      if (gap < bestGap) [best, bestGap] = [c, gap];
      if (gap <= TOLERANCE) break;
      if (total > 1) low = c;
      else high = c;
      const newton = c - (total * expm1Over(e, -Math.log(Math.max(total, 1e-300)))) / slope;
      const halve = !(newton >= low && newton <= high) || (e > 1 && gap > 0.5 * lastGap);
      c = halve ? 0.5 * (low + high) : newton;
      lastGap = gap;
    }
    return best;
  }

  function entmax(scores, alpha) {
    const e = alpha - 1;
    const n = scores.length;
    const weights = new Float64Array(n);
    let top = -Infinity;
    for (let i = 0; i < n; i++) top = Math.max(top, scores[i]); // NaN if there is one
    if (top === -Infinity) return weights;
    if (Number.isNaN(top) || Number.isNaN(e)) return weights.fill(NaN);
    const u = new Float64Array(n);
    let allowed = 0;
    for (let i = 0; i < n; i++) {
      if (top === Infinity)
        u[i] = scores[i] === Infinity ? 0 : -Infinity; // +inf entries share the mass
      else u[i] = scores[i] - top;
      if (u[i] > -Infinity) allowed++;
    }
    const c = solve(u, allowed, e, weights);
    const { total } = fill(u, c, e, weights);
    // Of many equal scores beyond alpha = 2, 1 + e x = n^-e is less than 1 - e c can hold. All are off alike: divide by the
    // sum, and where nothing is left of it share the mass among the best.
    if (e > 1 && 1 - e * c < 1e-6) {
      const best = u.reduce((count, value) => count + (value === 0), 0);
      for (let i = 0; i < n; i++) weights[i] = total > 0 ? weights[i] / total : (u[i] === 0) / best;
    }
    return weights;
  }

  return { entmax };
})();
