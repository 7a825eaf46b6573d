#include "cpu/threads/fork.h"

#include <pthread.h>

#include <atomic>

namespace fusedops {
namespace {

std::atomic<bool> used{false}, lost{false};

// The handler runs in the child of a fork.
const int registered = pthread_atfork(nullptr, nullptr, [] { lost = used.load(); });

}  // namespace

void threads_are_used() { used.store(true, std::memory_order_relaxed); }

bool threads_are_lost() { return registered == 0 && lost.load(std::memory_order_relaxed); }

}  // namespace fusedops
