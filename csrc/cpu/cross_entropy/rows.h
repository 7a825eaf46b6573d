// The kernels of a cross entropy over rows.
#pragma once

#include <cmath>

#include "cpu/dispatch/table.h"
#include "cpu/simd/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

inline int64_t class_of(const Targets& targets, int64_t row) {
  return targets.is_int64 ? static_cast<const int64_t*>(targets.data)[row]
                          : static_cast<const int32_t*>(targets.data)[row];
}

template <class In>
double raw_at(const In* input, int64_t col) {
  return double(load(input + col, Tail{1}).v[0][0]);
}

inline double logit_of(const Logits& logits, double x) {
  x *= logits.scale;
  return logits.softcap == 0 ? x : std::tanh(x / logits.softcap) * logits.softcap;
}

template <class In>
void cross_entropy_rows(const CrossEntropyForward& args, RowRange range) {
  using C = Compute<In>;
  for (int64_t row = range.begin; row < range.end; ++row) {
    const In* input = start_of<In>(args.logits.input, row);
    const int64_t target = class_of(args.targets, row);
    const bool ignored = args.targets.has_ignored && target == args.targets.ignored;
    double lse = 0, loss = 0;
    if (!ignored || args.reads_ignored) {
      double max = -INFINITY, sum = 0, total = 0;
      for (int64_t c = 0; c < args.cols; ++c)
        max = std::fmax(max, logit_of(args.logits, raw_at(input, c)));
      const double shift = std::isinf(max) ? 0 : max;
      for (int64_t c = 0; c < args.cols; ++c) {
        const double x = logit_of(args.logits, raw_at(input, c));
        sum += std::exp(x - shift), total += x;
      }
      lse = shift + std::log(sum);
      const double x = ignored ? 0 : logit_of(args.logits, raw_at(input, target));
      double others = 0;
      if (!ignored) {
        for (int64_t c = 0; c < args.cols; ++c)
          if (c != target) others += std::exp(logit_of(args.logits, raw_at(input, c)) - x);
        loss = others < 1 ? std::log1p(others) : lse - x;
        const double e = args.label_smoothing;
        loss = (1 - e) * loss + (e == 0 ? 0 : e * (lse - total / args.cols));
      }
    }
    static_cast<C*>(args.losses)[row] = C(loss);
    static_cast<C*>(args.lse)[row] = C(lse);
    static_cast<C*>(args.lse_error)[row] =
        std::isinf(lse) ? 0 : C(lse - double(C(lse)));
  }
}

template <class In>
void cross_entropy_backward_rows(const CrossEntropyBackward& args, RowRange range) {
  using C = Compute<In>;
  for (int64_t row = range.begin; row < range.end; ++row) {
    const In* input = start_of<In>(args.logits.input, row);
    In* result = start_of<In>(args.grad_input, row);
    const int64_t target = class_of(args.targets, row);
    const bool ignored = args.targets.has_ignored && target == args.targets.ignored;
    const auto at = [&](const void* values) {
      return values == nullptr ? 0 : double(static_cast<const C*>(values)[row]);
    };
    const double g = ignored ? 0 : at(args.grad_losses), g_lse = at(args.grad_lse);
    const double e = args.label_smoothing, lse = at(args.lse) + at(args.lse_error);
    for (int64_t c = 0; c < args.cols; ++c) {
      const double raw = raw_at(input, c), x = logit_of(args.logits, raw), p = std::exp(x - lse);
      double grad = (g + g_lse) * p - g * e / args.cols;
      if (c == target) {
        const double missing = e == 0 ? std::expm1(-at(args.losses)) : p - 1;
        grad = g * missing + g * e + g_lse * p - g * e / args.cols;
      }
      const double cap = args.logits.softcap, ratio = cap == 0 ? 0 : x / cap;
      grad *= args.logits.scale * (1 - ratio * ratio);
      if (g == 0 && g_lse == 0) grad = 0;
      store(result + c, Tail{1}, Broadcast(C(grad)));
    }
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
