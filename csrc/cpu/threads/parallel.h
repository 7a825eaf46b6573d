// Shares the work of CPU kernels among threads. Each library links one implementation: torch's
// threads, or OpenMP in a library without torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace fusedops {

// Returns the number of threads that a parallel_for() may use.
int64_t thread_count();

// Returns the index of the calling thread, which differs between threads of a parallel_for().
int64_t thread_index();

// Calls body(begin, end, context) in parallel for at most ceil(count / grain) ranges, which cover
// [0, count). An exception from a body is rethrown here once all are done.
using RangeBody = void (*)(int64_t begin, int64_t end, const void* context);
void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context);

// Calls f(begin, end) as the function above calls its body.
template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  const RangeBody body = [](int64_t begin, int64_t end, const void* context) {
    (*static_cast<const F*>(context))(begin, end);
  };
  parallel_for(count, grain, body, &f);
}

// Stores the first exception that a thread throws until all threads are done, because an exception
// must not leave its thread.
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
