// The emulator's internals: threads, warps, blocks and what they wait at.
//
// Code that runs in a fiber allocates only under Quiet, because ThreadSanitizer watches malloc.
#pragma once

#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "fiber.h"
#include "simt.h"

namespace simt {

inline constexpr unsigned kLanes = 32, kMaxThreads = 1024;

struct Block;
struct Warp;

enum class State : uint8_t { kReady, kWaiting, kExited };

struct Thread : View {
  Fiber fiber;
  State state = State::kExited;
  const char* waits_for = "";
  const void* waits_at = nullptr;
  Site site;  // where it last waited
  Block* owner = nullptr;
  Warp* warp = nullptr;
  // The operands of a warp collective, and its result.
  uint64_t value = 0, result = 0;
  unsigned source = 0;
  // The cluster barrier: whether this thread has yet to wait after its arrival, in which phase it
  // arrived, and whether it has ever waited.
  bool cluster_arrived = false, cluster_met = false;
  unsigned cluster_phase = 0;
};

// Two tokens take turns: what a fast thread releases at the next barrier must not reach a slow
// thread that is still leaving this one.
struct Barrier {
  unsigned arrived = 0, phase = 0;
  Site site;
  char tokens[2];
};

// Where the lanes of a mask gather. Disjoint masks gather in different ones.
struct Collective {
  uint32_t mask = 0, arrived = 0;
  WarpOp op = WarpOp::kSync;
  Site site;
};

struct Warp {
  Thread* lanes[kLanes] = {};
  uint32_t running = 0;  // lanes that exist and have not exited
  Collective collectives[kLanes];
  unsigned gathering = 0;  // collectives that some lanes wait at
  unsigned phase = 0;
  char tokens[2];
};

// A cluster's barrier, in two halves. Phases take turns as those of Barrier: no thread waits for
// the one before when all have arrived for the next.
struct ClusterBarrier {
  unsigned arrived = 0, phase = 0;
  unsigned waited[2] = {};
  Site arrive_site, wait_sites[2];
};

struct Cluster {
  std::vector<Block*> blocks;
  ClusterBarrier barrier;
};

struct Block {
  std::vector<Thread*> threads;
  std::vector<Warp> warps;
  Barrier barrier;
  Cluster* cluster = nullptr;
  unsigned live_threads = 0;
  char* shared = nullptr;
  uint32_t touched = 0;  // a bit for each shared array that is in use
};

// The threads that can run, in the order of the configuration.
class ReadyQueue {
 public:
  void reset(size_t capacity);
  bool empty() const { return count_ == 0; }
  void push(Thread* thread);
  Thread* pop(std::mt19937& random);

 private:
  Thread*& at(size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }

  std::vector<Thread*> ring_;  // a power of two
  size_t first_ = 0, count_ = 0;
};

extern Thread* running;
extern std::mt19937 random_order;

bool same(const Site& a, const Site& b);
void wake(Thread* thread);
void wake_all(const std::vector<Thread*>& threads, const void* at);  // of those that wait there
void wait(const char* what, const void* at, const Site& site);       // suspends the running thread

// Asynchronous stores (async.cpp).
void check_nothing_comes();  // to the running thread's block, which exits
bool complete_one_store();   // false: none is pending
void reset_stores();         // at the end of a launch

// The same address in another block of the cluster, which must have started and not exited.
void* address_in_block(void* own, unsigned rank, const Site& site);

}  // namespace simt
