// Describes what tune measures: a question is an operator on a shape, a plan one way to launch it.
#pragma once

#include <cstdint>
#include <vector>

#include "args.h"

namespace tune {

using fusedops::DType;

enum class Op : int32_t {
  kSoftmax,
  kLogSoftmax,
  kSoftmaxStatistics,
  kSoftmaxApply,
  kPaddedSoftmax,  // masked_softmax with a bool mask that all rows share
  kCausalSoftmax,
  kCappedSoftmax,  // causal, with a soft cap
  kSpatialSoftmax,
  kLayerNorm,
  kRmsNorm,
  kStdNorm,
  kAddLayerNorm,
  kAddRmsNorm,
};
inline constexpr const char* kOpNames[] = {
    "softmax",        "log_softmax",    "softmax_statistics", "softmax_apply", "padded_softmax",
    "causal_softmax", "capped_softmax", "spatial_softmax",    "layer_norm",    "rms_norm",
    "std_norm",       "add_layer_norm", "add_rms_norm"};

struct Question {
  Op op;
  bool backward;
  DType dtype;
  int64_t rows, cols;
};

inline const char* name_of(Op op) { return kOpNames[static_cast<int32_t>(op)]; }

// Names the two dtypes that tune measures.
inline const char* name_of(DType dtype) {
  return dtype == DType::kBFloat16 ? "bfloat16" : "float32";
}

// One way to launch an operator. A number that does not apply is zero: elements if no block holds
// the row, partitions except in the backward pass of a norm, a segment if rows are not cut.
struct Plan {
  int32_t width = 0;        // elements of a vector
  int32_t elements = 0;     // of a row in each thread's registers
  int32_t row_threads = 0;  // that share a row, in a block
  int32_t rows = 1;         // of a block
  int32_t blocks = 1;       // of a cluster
  int64_t partitions = 0;   // of the rows, for sums of columns
  int32_t segment = 0;      // columns of a segment
  int32_t fixed = 0;        // row_threads, where the kernel is compiled for that number

  int32_t threads() const { return row_threads * rows; }
};

inline bool operator==(const Plan& a, const Plan& b) {
  return a.width == b.width && a.elements == b.elements && a.row_threads == b.row_threads &&
      a.rows == b.rows && a.blocks == b.blocks && a.partitions == b.partitions &&
      a.segment == b.segment && a.fixed == b.fixed;
}

// A question, and whether candidates are measured beside the plan of the package, the incumbent.
struct Ask {
  Question question;
  bool with_candidates;
};

// Returns the questions, the most useful first, with tensors of up to `largest` bytes.
std::vector<Ask> questions(int64_t largest);

// Returns questions that run every operator and kernel on a few short and long rows.
std::vector<Ask> smoke_questions(int64_t largest);

}  // namespace tune
