// Where the root of a row lies: from the number of its scores, their mean and deviation, and from rows of the same alpha solved before.
#pragma once

#include "newton.h"

namespace {

constexpr int kMemory = 16;  // rows solved before from which others are guessed: they count the less the older they are
constexpr float kNearlyEqual = 0.3f;   // of the deviation of q over its mean: below, two moments tell where the root is,
constexpr float kThirdMoment = 0.01f;  // if what the third one may add to the sum is below this
constexpr float kAlike = 0.3f;         // of a standard deviation: rows that differ by less have their root where it tells
constexpr float kVeryLow = -50.0f;     // scores this far below the maximum do not count

// The number of scores of up to VL rows, one a lane, their mean and standard deviation, less the maximum.
struct Spread {
  vf n, mean, deviation;
  Spread(vf count, vf sum, vf sum_of_squares)
      : n(vmax(count, splat(1.0f))), mean(sum / n), deviation(vsqrt(vmax(sum_of_squares / n - mean * mean, vf{}))) {}
};

struct Guess {
  vf lam;
  uint32_t rough;  // lanes that have no guess yet
};

// Rows solved before: weighted sums of their deviation d and d^2, y = lam - mean, slope = dy/dd, slope d, ln n and W.
struct SolvedRows {
  float rows = 0.0f, d = 0.0f, d2 = 0.0f, y = 0.0f, slope = 0.0f, slope_d = 0.0f, log_n = 0.0f, W = 0.0f;

  static void remember_in(float& sum, vf x, int size) {
    sum = (1.0f - (float)size / (float)kMemory) * sum + hsum(blend((1u << size) - 1, x, vf{}));
  }

  // Adds `size` rows. Scores u = mean + d z have d lam/dd = sum(w z)/W, and sum(w q) = S gives sum(w u).
  void remember(float e, const Spread& of, const Roots& roots, int size) {
    const vf weighted = (roots.S / roots.W - (1.0f - e * roots.at)) / e, dev = of.deviation;
    const vf change = (weighted - of.mean) / vmax(dev, splat(kSmallestNormal));
    auto add = [&](float& sum, vf x) { remember_in(sum, x, size); };
    add(rows, splat(1.0f)), add(d, dev), add(d2, dev * dev), add(y, roots.at + roots.last_step - of.mean);
    add(slope, change), add(slope_d, change * dev), add(log_n, natural_log(of.n)), add(W, roots.W);
  }

  // lam of rows that spread about like those before: a parabola in the deviation whose height, slope and curvature are theirs on average;
  // n times as many scores add ln n to ln S.
  Guess guess(const Spread& at, vf log_n_of_row, vf aim_short) const {
    const float per_row = 1.0f / rows, mean_d = d * per_row, mean_slope = slope * per_row;
    const float variance = fmaxf(d2 * per_row - mean_d * mean_d, 0.0f);
    const float curvature =
        fminf(fmaxf((slope_d * per_row - mean_slope * mean_d) / (variance + 1e-3f * mean_d * mean_d + 1e-30f), 0.0f), 2.0f);
    const vf change = at.deviation - mean_d, more = (log_n_of_row - log_n * per_row) / (W * per_row);
    const vf lam =
        at.mean + (y * per_row + mean_slope * change + 0.5f * curvature * (change * change - variance)) + more - aim_short;
    const uint32_t is_alike = bits_greater(splat(kAlike * mean_d), vmax(change, -change)),
                   is_finite = bits_greater(splat(kInf), vmax(lam, -lam));
    return {lam, ~(is_alike & is_finite)};
  }
};

// lam of normal scores with mean m and deviation d at e > 1/2: with x = e d/q, q = n^-e, that of equal scores and d times a function of x and
// e, fitted to n E[1 + e (m + d z - lam)]_+^(1/e) = 1. Where only few of them have weight, the largest scores tell more.
inline Guess guess_normal(float e, const Spread& at, vf q, vf aim_short) {
  const float k = 1.0f / e - 1.0f;
  const vf x = e * at.deviation / q, x2 = x * x, many_cut = x2 / (x2 + 1.71f * x + 0.9f);
  const vf above = (0.5f * k) * x / (1.0f + 0.493f * x2) + 1.384f * (1.0f + 0.796f * k) * (many_cut * many_cut);
  return {(1.0f - q) / e + at.mean + at.deviation * above - aim_short, bits_greater(x * (1.25f - 1.2f * e), splat(1.0f))};
}

// lam of scores that are nearly equal, with mean m and variance v: all have about the weight 1/n, so that q = n^-e at the mean, and v adds
// (1 - e) v / (2 q^2) to the sum. Above e = 1/2 as for normal scores, whose deviation may be larger.
inline Guess guess_nearly_equal(float e, const Spread& at, vf q, vf aim_short) {
  if (e > 0.5f) return guess_normal(e, at, q, aim_short);
  const vf ratio = at.deviation / q;
  const vf third = (1.0f - 2.0f * e) * (ratio * ratio * ratio) * (1.0f / 6);
  return {(1.0f - q) / e + at.mean + (0.5f - 0.5f * e) * (ratio * ratio * q) - aim_short,
          bits_greater(e * ratio, splat(kNearlyEqual)) | bits_greater(third, splat(kThirdMoment))};
}

}  // namespace
