// Fibers: stacks that one OS thread switches between, known to the sanitizers.
//
// The sanitizers' functions are weak: they exist where the kernels were built with a sanitizer.
// This file never is, because the emulator's accesses are not those of the kernels.
#pragma once

#include <cstddef>

extern "C" {
[[gnu::weak]] void __asan_poison_memory_region(const volatile void*, size_t);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void*, size_t);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void**, const void*, size_t);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned);
[[gnu::weak]] void __tsan_destroy_fiber(void*);
[[gnu::weak]] void __tsan_switch_to_fiber(void*, unsigned);
[[gnu::weak]] void __tsan_acquire(void*);
[[gnu::weak]] void __tsan_release(void*);
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char*, int);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char*, int);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char*, int);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char*, int);
}

namespace simt {

inline bool with_asan() { return __asan_poison_memory_region != nullptr; }
inline bool with_tsan() { return __tsan_create_fiber != nullptr; }

// What happens before release(token) happens before what follows acquire(token).
inline void acquire(void* token) {
  if (with_tsan()) __tsan_acquire(token);
}
inline void release(void* token) {
  if (with_tsan()) __tsan_release(token);
}

inline void poison(const void* at, size_t bytes) {
  if (with_asan()) __asan_poison_memory_region(at, bytes);
}
inline void unpoison(const void* at, size_t bytes) {
  if (with_asan()) __asan_unpoison_memory_region(at, bytes);
}

// While it lives, ThreadSanitizer ignores accesses: those of malloc and memset, which the emulator
// calls in a fiber, are not the kernel's.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;
};

// A ThreadSanitizer fiber takes 0.5 ms to make, and its stack is tied to it: another fiber's locals
// at the same address would look like races. So make fibers once and restart them.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;

  void start(void (*entry)());  // resume() will call entry on a fresh stack
  void resume();                // from the main fiber, until the fiber suspends
  void suspend();               // from this fiber, back to where resume() was called
  [[noreturn]] void finish();   // suspends for the last time

 private:
  static void run();
  void leave(void** fake_stack);

  char* mapping_ = nullptr;
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
  void (*entry_)() = nullptr;
};

// Runs `work` as a thread that is ordered with the others only by acquire() and release().
template <class F>
void on_own_thread(F work) {
  if (!with_tsan()) return work();
  void* const main = __tsan_get_current_fiber();
  void* const other = __tsan_create_fiber(0);
  constexpr unsigned kNoSync = 1;
  __tsan_switch_to_fiber(other, kNoSync);
  work();
  __tsan_switch_to_fiber(main, kNoSync);
  __tsan_destroy_fiber(other);
}

}  // namespace simt
