#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if !defined(__x86_64__)
#error "the context switch below is for x86-64"
#endif

// simt_switch_stack(&from, to) saves the callee-saved registers of the System V ABI on this stack
// and continues on the other. swapcontext() would make two system calls for the same.
extern "C" void simt_switch_stack(void** from, void* to);
asm(R"(
.text
.globl simt_switch_stack
.hidden simt_switch_stack
.type simt_switch_stack, @function
simt_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stack, . - simt_switch_stack
)");

namespace simt {
namespace {

constexpr size_t kSavedRegisters = 6, kGuardBytes = 4096;
constexpr unsigned kNoSync = 1;  // __tsan_switch_to_fiber: switching orders nothing

// Sanitized frames are large. Only touched pages take memory.
constexpr size_t kStackBytes = 256 << 10;

Fiber* running;
void* main_stack_pointer;
void* main_fake_stack;
const void* main_stack;
size_t main_stack_bytes;
void* main_tsan_fiber;

}  // namespace

Quiet::Quiet() {
  if (!with_tsan()) return;
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

Quiet::~Quiet() {
  if (!with_tsan()) return;
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

Fiber::Fiber() {
  void* const mapping = mmap(
      nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, kGuardBytes, PROT_NONE) != 0) {
    std::perror("no memory for a stack");
    std::abort();
  }
  mapping_ = static_cast<char*>(mapping);
  // Once is enough: every frame of sanitized code removes its poison when it returns.
  unpoison(mapping_ + kGuardBytes, kStackBytes);
  if (with_tsan()) tsan_fiber_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  if (with_tsan()) __tsan_destroy_fiber(tsan_fiber_);
  munmap(mapping_, kGuardBytes + kStackBytes);
}

void Fiber::start(void (*entry)()) {
  entry_ = entry;
  fake_stack_ = nullptr;
  // As simt_switch_stack leaves it: saved registers, the address to return to, which is run() here,
  // and run()'s own return address, none. The top is a multiple of 16, so the ABI has its
  // alignment.
  void** top = reinterpret_cast<void**>(mapping_ + kGuardBytes + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::run);
  for (size_t i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Fiber::run() {
  if (with_asan()) __sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_stack_bytes);
  running->entry_();
  running->finish();
}

void Fiber::resume() {
  running = this;
  if (with_asan()) {
    __sanitizer_start_switch_fiber(&main_fake_stack, mapping_ + kGuardBytes, kStackBytes);
  }
  if (with_tsan()) {
    main_tsan_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber_, kNoSync);
  }
  simt_switch_stack(&main_stack_pointer, stack_pointer_);
  if (with_asan()) __sanitizer_finish_switch_fiber(main_fake_stack, nullptr, nullptr);
}

void Fiber::leave(void** fake_stack) {
  if (with_asan()) __sanitizer_start_switch_fiber(fake_stack, main_stack, main_stack_bytes);
  if (with_tsan()) __tsan_switch_to_fiber(main_tsan_fiber, kNoSync);
  simt_switch_stack(&stack_pointer_, main_stack_pointer);
}

void Fiber::suspend() {
  leave(&fake_stack_);
  if (with_asan()) __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
}

void Fiber::finish() {
  leave(nullptr);
  std::abort();
}

}  // namespace simt
