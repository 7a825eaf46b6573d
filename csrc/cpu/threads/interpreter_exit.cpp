#include "cpu/threads/interpreter_exit.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace fusedops {
namespace {

using Clock = std::chrono::steady_clock;
using Query = int (*)();

// A thread waits at most this long for the interpreter to begin to finalize. It cannot wait longer,
// because exit handlers, which run before that, may be waiting for the thread.
constexpr std::chrono::seconds kTimeout(1);

struct Exit {
  std::atomic<bool> begins{false};
  std::thread::id main_thread;
  Clock::time_point deadline;
  Query is_finalizing, holds_lock;
  std::atomic<int> users{0}, waiting{0};
};

// The object is never destroyed, because threads wait beyond the destruction of static objects.
Exit& program_exit() {
  static Exit& exit = *new Exit;
  return exit;
}

// Counts a thread that calls ops, from its first call until the thread ends.
struct User {
  User() { ++program_exit().users; }
  ~User() { --program_exit().users; }
};

void count_this_thread() { thread_local const User user; }

// Waits until the process ends, or only until the deadline if the interpreter does not begin to
// finalize.
void wait(Exit& exit) {
  const std::chrono::milliseconds turn(1);
  ++exit.waiting;
  bool ends = false;  // once true, stays true, because an ended interpreter must not be asked
  while ((ends = ends || exit.is_finalizing()) || Clock::now() < exit.deadline) {
    std::this_thread::sleep_for(turn);
  }
  --exit.waiting;
}

}  // namespace

void wait_while_interpreter_exits() {
  count_this_thread();
  Exit& exit = program_exit();
  if (!exit.begins.load(std::memory_order_acquire)) return;
  if (std::this_thread::get_id() == exit.main_thread || exit.holds_lock()) return;
  wait(exit);
}

}  // namespace fusedops

// The main thread calls this when the program ends. It passes functions of the interpreter that
// return whether it is finalizing, and whether the calling thread holds its lock.
extern "C" __attribute__((visibility("default"))) void fusedops_interpreter_exits(
    int (*is_finalizing)(), int (*holds_lock)()) {
  fusedops::count_this_thread();
  fusedops::Exit& exit = fusedops::program_exit();
  exit.main_thread = std::this_thread::get_id();
  exit.deadline = fusedops::Clock::now() + fusedops::kTimeout;
  exit.is_finalizing = is_finalizing;
  exit.holds_lock = holds_lock;
  exit.begins.store(true, std::memory_order_release);
}

// Returns the number of threads, except the main one, that have called ops, have not ended and do
// not wait. It must be called after fusedops_interpreter_exits(), which counts the main thread.
extern "C" __attribute__((visibility("default"))) int fusedops_threads_under_way() {
  const fusedops::Exit& exit = fusedops::program_exit();
  return exit.users - exit.waiting - 1;
}
