// How the CPU kernels share work among threads. Each library links one implementation: torch's
// threads, or OpenMP where there is no torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace fusedops {

// Threads that a parallel_for() may use.
int64_t thread_count();

// Which of those threads the caller is: its own number in each body of a parallel_for() that is
// divided.
int64_t thread_index();

// body(begin, end, context) over [0, count), in runs of at least `grain` but for the last, side by
// side. What one of them throws is thrown here, once all are done.
using RangeBody = void (*)(int64_t begin, int64_t end, const void* context);
void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context);

template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  const RangeBody body = [](int64_t begin, int64_t end, const void* context) {
    (*static_cast<const F*>(context))(begin, end);
  };
  parallel_for(count, grain, body, &f);
}

// The first exception that a thread throws is kept until all are done: none must leave its thread.
class FirstException {
 public:
  template <class F>
  void capture_from(const F& f) noexcept {
    try {
      f();
    } catch (...) {
      if (!is_captured_.test_and_set()) captured_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (captured_) std::rethrow_exception(captured_);
  }

 private:
  std::atomic_flag is_captured_ = ATOMIC_FLAG_INIT;
  std::exception_ptr captured_;
};

}  // namespace fusedops
