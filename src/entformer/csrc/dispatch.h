// Which path runs when: one list per choice, first match wins.
//
// Each entry is X(name, condition as text, predicate on the case `c`). The enum, the chooser and the text table, which
// `entformer doctor --json` prints and docs/kernels.md repeats, come from the same list.
#pragma once

#include <math.h>
#include <stdint.h>

enum class AlphaCase { Softmax, Entmax15, Sparsemax, General };

namespace {

constexpr double kSoftmaxBelow = 1e-30;     // |alpha - 1| below this rounds to softmax
constexpr double kTableMinE = 1.0 / 12;     // below, 1/e - 1 is too high a power for a rounded base
constexpr double kSteepestMinE = 1.0 / 25;  // below, for the tables
constexpr int64_t kShortRow = 128;
constexpr int64_t kTableMaxRow = 4096;  // the table solver sums in float32
constexpr double kInPlaceShare = 0.25;  // of nonzero weights; below, packing them for the solver is worth it
constexpr int64_t kDecodeQueries = 3;
constexpr int64_t kColumnSkip = 255;  // see attention_saved.h

inline AlphaCase alpha_case(double e) {
  return fabs(e) < kSoftmaxBelow ? AlphaCase::Softmax
         : e == 0.5              ? AlphaCase::Entmax15
         : e == 1.0              ? AlphaCase::Sparsemax
                                 : AlphaCase::General;
}
// Whether powers for this e come from tables, given an instruction set that has them.
inline bool has_table(double e) { return e >= kTableMinE && e < 1.0 && e != 0.5; }
inline bool has_steepest_table(double e) { return e >= kSteepestMinE && e < kTableMinE; }

}  // namespace

#define ENTMAX_FORWARD_PATHS(X)                                                                      \
  X(Float64, "float64 input, alpha < 1 or alpha > 2", c.is_float64 || c.e < 0.0 || c.e > 1.0)        \
  X(Short, "n <= 128, 1 < alpha < 13/12, and the rows of the batch share alpha",                     \
    c.n <= kShortRow && c.shares_alpha && c.e < kTableMinE && alpha_case(c.e) != AlphaCase::Softmax) \
  X(Table, "AVX-512 or AVX2, n <= 4096, 13/12 <= alpha < 2, alpha is not 1.5",                       \
    c.has_tables&& c.n <= kTableMaxRow && has_table(c.e))                                            \
  X(NonFinite, "the row maximum is not finite, or alpha is NaN", !c.has_finite_max() || c.e != c.e)  \
  X(Softmax, "alpha = 1", alpha_case(c.e) == AlphaCase::Softmax)                                     \
  X(Entmax15, "alpha = 1.5", alpha_case(c.e) == AlphaCase::Entmax15)                                 \
  X(Sparsemax, "alpha = 2", alpha_case(c.e) == AlphaCase::Sparsemax)                                 \
  X(General, "otherwise", true)

#define ENTMAX_BACKWARD_PATHS(X)                                                              \
  X(Float64, "float64 input, alpha < 1 or alpha > 2", c.is_float64 || c.e < 0.0 || c.e > 1.0) \
  X(InPlace, "alpha is 1, 1.5 or 2, and alpha needs no gradient",                             \
    !c.needs_alpha_grad && c.e == c.e && alpha_case(c.e) != AlphaCase::General)               \
  X(Packed, "otherwise", true)

#define ATTENTION_SCORES_PATHS(X)                                                 \
  X(Decode, "at most 3 queries per key head", c.Lq*(c.H / c.G) <= kDecodeQueries) \
  X(Panels, "otherwise", true)

#define ATTENTION_OUTPUT_PATHS(X)                                                                                    \
  X(Dense,                                                                                                           \
    "nonzero weights in two sampled rows of the block: more than 33%/(1 + keys/3000), with AVX-512 22%, there with " \
    "products of bfloat16 14%, at most 128 keys and heads of 32 12%",                                                \
    c.is_dense())                                                                                                    \
  X(Sparse, "otherwise", true)

#define ATTENTION_SOLVER_PATHS(X)                                                                       \
  X(Short, "at most 128 keys, 1 < alpha <= 2", c.is_short)                                              \
  X(InPlace, "output is Dense, more than 25% of the sampled weights, 1 <= alpha < 2, alpha is not 1.5", \
    c.has_power&& choose_output(c) == OutputPath::Dense && c.nonzero > kInPlaceShare * c.weights)       \
  X(Packed, "otherwise", true)

#define ATTENTION_SAVED_PATHS(X)                                                                                    \
  X(Row, "the weights of all keys of the block fit into the reserve of the row, and there is no sink at alpha > 2", \
    c.block_keys * 4 <= c.reserve_bytes && !(c.in_double && c.has_sink))                                            \
  X(Weights, "columns and weights of the support fit, and there is no sink at alpha > 2",                           \
    c.support_size*(c.column_bytes + 4) <= c.reserve_bytes && !(c.in_double && c.has_sink))                         \
  X(Columns, "columns fit as gaps of one byte, alpha <= 2, the row maximum is finite",                              \
    c.support_size + c.keys / kColumnSkip <= c.reserve_bytes && !c.in_double && c.row_max - c.row_max == 0.0f)      \
  X(Nothing, "otherwise", true)

#define ATTENTION_BACKWARD_PATHS(X)                                                                                            \
  X(Dense, "nonzero weights of the block: more than the same, and grad_output is finite", c.is_dense() && c.has_finite_grad()) \
  X(Saved, "every row of the block has a saved support", c.all_saved)                                                          \
  X(Recompute, "otherwise", true)

#define ENTFORMER_ENUMERATOR(name, condition, predicate) name,
#define ENTFORMER_CHOICE(name, condition, predicate) \
  if (predicate) return Path::name;
#define ENTFORMER_DISPATCH(PATHS, Enum, chooser)   \
  enum class Enum { PATHS(ENTFORMER_ENUMERATOR) }; \
  template <class Case>                            \
  Enum chooser(const Case& c) {                    \
    using Path = Enum;                             \
    PATHS(ENTFORMER_CHOICE)                        \
  }

namespace {

ENTFORMER_DISPATCH(ENTMAX_FORWARD_PATHS, EntmaxForwardPath, choose_entmax_forward)
ENTFORMER_DISPATCH(ENTMAX_BACKWARD_PATHS, EntmaxBackwardPath, choose_entmax_backward)
ENTFORMER_DISPATCH(ATTENTION_SCORES_PATHS, ScoresPath, choose_scores)
ENTFORMER_DISPATCH(ATTENTION_OUTPUT_PATHS, OutputPath, choose_output)
ENTFORMER_DISPATCH(ATTENTION_SOLVER_PATHS, SolverPath, choose_solver)
ENTFORMER_DISPATCH(ATTENTION_SAVED_PATHS, SavedFormat, choose_saved_format)
ENTFORMER_DISPATCH(ATTENTION_BACKWARD_PATHS, BackwardPath, choose_backward)

}  // namespace

#define ENTFORMER_LINE(choice, name, condition) choice "\t" #name "\t" condition "\n"
#define ENTMAX_FORWARD_LINE(name, condition, predicate) ENTFORMER_LINE("entmax", name, condition)
#define ENTMAX_BACKWARD_LINE(name, condition, predicate) ENTFORMER_LINE("entmax_backward", name, condition)
#define ATTENTION_SCORES_LINE(name, condition, predicate) ENTFORMER_LINE("attention: scores", name, condition)
#define ATTENTION_SOLVER_LINE(name, condition, predicate) ENTFORMER_LINE("attention: solver", name, condition)
#define ATTENTION_OUTPUT_LINE(name, condition, predicate) ENTFORMER_LINE("attention: output", name, condition)
#define ATTENTION_SAVED_LINE(name, condition, predicate) ENTFORMER_LINE("attention: saved support", name, condition)
#define ATTENTION_BACKWARD_LINE(name, condition, predicate) ENTFORMER_LINE("attention_backward", name, condition)

// "choice<TAB>path<TAB>condition" lines.
inline constexpr const char* kDispatchTable = ENTMAX_FORWARD_PATHS(ENTMAX_FORWARD_LINE)
    ENTMAX_BACKWARD_PATHS(ENTMAX_BACKWARD_LINE) ATTENTION_SCORES_PATHS(ATTENTION_SCORES_LINE)
        ATTENTION_OUTPUT_PATHS(ATTENTION_OUTPUT_LINE) ATTENTION_SOLVER_PATHS(ATTENTION_SOLVER_LINE)
            ATTENTION_SAVED_PATHS(ATTENTION_SAVED_LINE) ATTENTION_BACKWARD_PATHS(ATTENTION_BACKWARD_LINE);
