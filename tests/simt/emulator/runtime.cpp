#include "runtime.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <string>

#include <cxxabi.h>
#include <sys/mman.h>

namespace simt {

Config config;
bool has_clusters = false;
View* self;
Thread* running;
std::mt19937 random_order;

namespace {

constexpr size_t kStaticSharedBytes = 48 << 10;
constexpr size_t kArenaBytes = 256 << 10;
constexpr unsigned kMaxClusterBlocks = 16;
// The threads of the blocks that run at a time. ThreadSanitizer knows up to 8128 fibers;
// kTsanFibers are used before the first one is used again, so that races between blocks further
// apart are missed. More fibers take longer, because every synchronisation has a clock for all of
// them.
constexpr unsigned kConcurrentThreads = 2048, kTsanFibers = 2048;

// Where a kernel's shared arrays lie, the same in all its blocks. Offsets are 16 modulo 32, so that
// no array is aligned further than promised. At least 16 bytes between arrays belong to none.
class SharedLayout {
 public:
  struct Array {
    const void* identity;
    size_t offset, bytes;
  };

  void clear() { count_ = static_bytes_ = 0, end_ = 0; }
  std::span<const Array> arrays() const { return {arrays_, count_}; }

  unsigned find_or_add(const void* identity, size_t bytes, const Site& site) {
    for (unsigned i = 0; i < count_; ++i) {
      if (arrays_[i].identity == identity) return i;
    }
    static_bytes_ += identity ? bytes : 0;
    const size_t offset = (end_ + 16 + 31) / 32 * 32 + 16;
    end_ = offset + bytes;
    if (count_ == std::size(arrays_) || static_bytes_ > kStaticSharedBytes || end_ > kArenaBytes) {
      fail(site, "%zu bytes of static shared memory in %u arrays", static_bytes_, count_ + 1);
    }
    arrays_[count_] = {identity, offset, bytes};
    return count_++;
  }

 private:
  Array arrays_[32];
  unsigned count_ = 0;
  size_t static_bytes_ = 0, end_ = 0;
};

struct Grid {
  const Launch* launch;
  const std::function<void()>* body;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::vector<std::unique_ptr<Block>> blocks;
  unsigned live_threads = 0;
  uint64_t blocks_started = 0;
  bool failed = false;
};

Grid grid;
Launch previous_launch;
SharedLayout layout;
ReadyQueue ready;
char error_text[4096];
char start_token, end_token;
std::unordered_map<const void*, Record> records;
uint64_t launches = 0;  // of all kernels, dry ones too

// Fibers and shared memory outlive a launch.
std::vector<std::unique_ptr<Thread>> thread_pool;
size_t next_thread = 0;
std::vector<char*> arenas;

char* arena(size_t index) {
  while (arenas.size() <= index) {
    void* const memory = mmap(
        nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1, 0);
    if (memory == MAP_FAILED) std::abort();
    poison(memory, kArenaBytes);
    arenas.push_back(static_cast<char*>(memory));
  }
  return arenas[index];
}

Thread* take_thread() {
  if (next_thread == thread_pool.size()) thread_pool.push_back(std::make_unique<Thread>());
  return thread_pool[next_thread++].get();
}

void yield() {
  if (config.threads == Order::kFifo) return;
  wake(running);
  running->fiber.suspend();
}

void run_thread() {
  acquire(&start_token);
  (*grid.body)();
  if (running->cluster_arrived) {
    fail(running->site, "a thread exits without having waited at the cluster barrier");
  }
  if (--running->owner->live_threads == 0) check_nothing_comes();
  running->state = State::kExited;
  running->warp->running &= ~(1u << running->lane);
  --grid.live_threads;
  release(&end_token);
}

// The memory of a shared array in a block, filled with poison at the first use.
char* array_in(Block& block, unsigned index) {
  const SharedLayout::Array& array = layout.arrays()[index];
  char* const memory = block.shared + array.offset;
  if (!(block.touched >> index & 1)) {
    Quiet quiet;
    unpoison(memory, array.bytes);
    std::memset(memory, config.poison, array.bytes);
    block.touched |= 1u << index;
  }
  return memory;
}

// `slot`: among the blocks that live now. Under ThreadSanitizer memory serves one block a launch:
// no order between two blocks may come from it.
void start_block(uint64_t id, Cluster* cluster, size_t slot) {
  const auto [grid_size, size] = std::pair(grid.launch->grid, grid.launch->block);
  const unsigned threads = size.x * size.y * size.z;
  Block* const block = grid.blocks.emplace_back(std::make_unique<Block>()).get();
  const auto rank = static_cast<unsigned>(cluster->blocks.size());
  cluster->blocks.push_back(block);
  block->cluster = cluster;
  block->warps.resize((threads + kLanes - 1) / kLanes);
  block->shared = arena(with_tsan() ? grid.blocks_started : slot);
  ++grid.blocks_started;
  if (grid.launch->dynamic_shared > 0) array_in(*block, 0);

  const uint3 index{
      static_cast<unsigned>(id % grid_size.x),
      static_cast<unsigned>(id / grid_size.x % grid_size.y),
      static_cast<unsigned>(id / grid_size.x / grid_size.y)};
  for (unsigned i = 0; i < threads; ++i) {
    const uint3 place{i % size.x, i / size.x % size.y, i / size.x / size.y};
    const unsigned lane = i % kLanes;
    Thread* const thread = take_thread();
    static_cast<View&>(*thread) = {place, index, size, grid_size, lane, rank, grid.launch->cluster};
    thread->owner = block;
    thread->warp = &block->warps[i / kLanes];
    thread->warp->lanes[lane] = thread;
    thread->warp->running |= 1u << lane;
    thread->site = Site();
    thread->cluster_arrived = thread->cluster_met = false;
    block->threads.push_back(thread);
    ++block->live_threads;
    thread->fiber.start(&run_thread);
  }
}

void describe(std::string& text, const Thread& thread) {
  char line[512];
  const char* const what = thread.state == State::kExited ? "has exited" : thread.waits_for;
  std::snprintf(
      line, sizeof(line), "\n  from block %u,%u thread %u,%u on: %s %s:%u", thread.block.x,
      thread.block.y, thread.thread.x, thread.thread.y, what, thread.site.file_name(),
      thread.site.line());
  text += line;
}

void fail_launch(const std::string& text) {
  std::snprintf(error_text, sizeof(error_text), "%s", text.c_str());
  grid.failed = true;
}

void report_deadlock() {
  std::string text =
      "deadlock: " + std::to_string(grid.live_threads) + " threads wait for what never comes";
  for (const auto& block : grid.blocks) {
    const Thread* above = nullptr;
    for (const Thread* thread : block->threads) {
      const bool alike = above && above->state == thread->state && same(above->site, thread->site);
      if (!alike && text.size() < sizeof(error_text) / 2) describe(text, *thread);
      above = thread;
    }
  }
  fail_launch(text);
}

void run_live_blocks() {
  for (const auto& block : grid.blocks) grid.live_threads += block->threads.size();
  ready.reset(grid.live_threads);
  for (const auto& block : grid.blocks) {
    for (Thread* thread : block->threads) wake(thread);
  }
  release(&start_token);
  while (grid.live_threads > 0 && !grid.failed) {
    const bool early =
        !config.late_stores || (config.threads == Order::kRandom && random_order() % 8 == 0);
    if (early || ready.empty()) {
      if (!complete_one_store() && ready.empty()) report_deadlock();
      if (ready.empty()) continue;
    }
    self = running = ready.pop(random_order);
    running->fiber.resume();
  }
  running = nullptr;
}

void retire_blocks() {
  for (const auto& block : grid.blocks) {
    for (unsigned i = 0; i < layout.arrays().size(); ++i) {
      if (block->touched >> i & 1) {
        poison(block->shared + layout.arrays()[i].offset, layout.arrays()[i].bytes);
      }
    }
  }
  grid.blocks.clear();
  grid.clusters.clear();
}

std::vector<uint64_t> cluster_order(uint64_t count) {
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (config.blocks == Order::kLifo) std::reverse(order.begin(), order.end());
  if (config.blocks == Order::kRandom) std::shuffle(order.begin(), order.end(), random_order);
  return order;
}

bool is_valid(const Launch& launch) {
  const dim3 &g = launch.grid, &b = launch.block;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  return threads >= 1 && threads <= kMaxThreads && b.z <= 64 && g.x >= 1 && g.y >= 1 && g.z >= 1 &&
      g.y <= 65535 && g.z <= 65535 &&
      launch.dynamic_shared <= static_cast<size_t>(config.max_shared_bytes) &&
      launch.cluster >= 1 && launch.cluster <= kMaxClusterBlocks && g.x % launch.cluster == 0;
}

void run_grid() {
  const dim3 size = grid.launch->grid, block = grid.launch->block;
  const unsigned cluster_blocks = grid.launch->cluster;
  const unsigned cluster_threads = cluster_blocks * block.x * block.y * block.z;
  const size_t at_a_time =
      config.concurrent_blocks ? std::max(1u, kConcurrentThreads / cluster_threads) : 1;
  const auto order = cluster_order(uint64_t{size.x} * size.y * size.z / cluster_blocks);
  for (size_t first = 0; first < order.size() && !grid.failed; first += at_a_time) {
    const size_t count = std::min(at_a_time, order.size() - first);
    if (!with_tsan() || next_thread + count * cluster_threads > kTsanFibers) next_thread = 0;
    for (size_t i = 0; i < count; ++i) {
      Cluster* const cluster = grid.clusters.emplace_back(std::make_unique<Cluster>()).get();
      for (unsigned rank = 0; rank < cluster_blocks; ++rank) {
        start_block(order[first + i] * cluster_blocks + rank, cluster, i * cluster_blocks + rank);
      }
    }
    run_live_blocks();
    retire_blocks();
  }
}

// Notes where the first thread came to a barrier, and fails where another one comes elsewhere.
void check_site(unsigned before, Site& first, const char* name, const Site& site) {
  if (before == 0) {
    first = site;
  } else if (!same(first, site)) {
    fail(site, "divergent %s: other threads wait at %s:%u", name, first.file_name(), first.line());
  }
}

// The collective that lanes of this mask gather at, or a free one.
Collective& join(Warp& warp, WarpOp op, uint32_t mask, const Site& site) {
  Collective* free = nullptr;
  unsigned unseen = warp.gathering;
  for (Collective& other : warp.collectives) {
    if (other.arrived == 0) {
      if (!free) free = &other;
      if (unseen == 0) break;
      continue;
    }
    --unseen;
    if (other.mask == mask && other.op == op && same(other.site, site)) {
      return other;
    } else if (other.mask & mask) {
      fail(
          site, "divergent warp collective with mask %08x: lanes %08x wait at %s:%u with mask %08x",
          mask, other.arrived, other.site.file_name(), other.site.line(), other.mask);
    }
  }
  ++warp.gathering;
  *free = {mask, 0, op, site};
  return *free;
}

void complete(Warp& warp, Collective& collective) {
  for (unsigned i = 0; i < kLanes; ++i) {
    if (!(collective.mask >> i & 1)) continue;
    Thread* const lane = warp.lanes[i];
    if (collective.op == WarpOp::kShuffle) lane->result = warp.lanes[lane->source]->value;
    if (lane != running) wake(lane);
  }
  collective.arrived = 0;
  --warp.gathering;
}

}  // namespace

void ReadyQueue::reset(size_t capacity) {
  ring_.resize(std::bit_ceil(capacity));
  first_ = count_ = 0;
}

void ReadyQueue::push(Thread* thread) { at(count_++) = thread; }

Thread* ReadyQueue::pop(std::mt19937& random) {
  --count_;
  if (config.threads == Order::kFifo) return ring_[first_++ & (ring_.size() - 1)];
  if (config.threads == Order::kRandom) std::swap(at(random() % (count_ + 1)), at(count_));
  return at(count_);
}

bool same(const Site& a, const Site& b) {
  const auto equal = [](const char* s, const char* t) { return s == t || !std::strcmp(s, t); };
  return a.line() == b.line() && a.column() == b.column() && equal(a.file_name(), b.file_name()) &&
      equal(a.function_name(), b.function_name());
}

void wake(Thread* thread) {
  thread->state = State::kReady;
  ready.push(thread);
}

void wake_all(const std::vector<Thread*>& threads, const void* at) {
  for (Thread* thread : threads) {
    if (thread->state == State::kWaiting && thread->waits_at == at) wake(thread);
  }
}

void wait(const char* what, const void* at, const Site& site) {
  running->state = State::kWaiting;
  running->waits_for = what;
  running->waits_at = at;
  running->site = site;
  running->fiber.suspend();
}

void fail(Site site, const char* format, ...) {
  Quiet quiet;
  int used = std::snprintf(
      error_text, sizeof(error_text), "%s:%u: ", site.file_name(),
      static_cast<unsigned>(site.line()));
  va_list arguments;
  va_start(arguments, format);
  used += std::vsnprintf(error_text + used, sizeof(error_text) - used, format, arguments);
  va_end(arguments);
  const uint3 &block = running->block, &thread = running->thread;
  std::snprintf(
      error_text + used, sizeof(error_text) - used, " (block %u,%u thread %u,%u)", block.x, block.y,
      thread.x, thread.y);
  grid.failed = true;
  release(&end_token);
  running->fiber.finish();
}

const char* error() { return error_text; }
const Launch& last_launch() { return previous_launch; }

uint64_t launch_count() { return launches; }

// Libraries fill it while they are loaded, before this file's other variables may exist.
static std::unordered_map<std::string, KernelCall>& calls() {
  static std::unordered_map<std::string, KernelCall> by_signature;
  return by_signature;
}

bool remember_call(const std::type_info& kernel_type, KernelCall call) {
  char* const type = abi::__cxa_demangle(kernel_type.name(), nullptr, nullptr, nullptr);
  calls()[std::strchr(type, '(')] = call;  // behind "void "
  std::free(type);
  return true;
}

KernelCall find_call(const char* signature) {
  const auto found = calls().find(signature);
  return found == calls().end() ? nullptr : found->second;
}

void for_each_record(const std::function<void(const void*, const Record&)>& visit) {
  for (const auto& [kernel, record] : records) visit(kernel, record);
}

int launch(const Launch& launch, const std::function<void()>& thread) {
  if (launch.kernel == nullptr) return kInvalidDeviceFunction;  // as CUDA does
  if (!is_valid(launch)) return kInvalidConfiguration;
  previous_launch = launch;
  Record& record = records[launch.kernel];
  record.launches += !config.dry;
  record.latest = ++launches;
  record.threads = std::max(record.threads, launch.block.x * launch.block.y * launch.block.z);
  if (config.dry) return kSuccess;

  random_order.seed(config.seed);
  grid.launch = &launch;
  grid.body = &thread;
  grid.live_threads = grid.blocks_started = 0;
  grid.failed = false;
  layout.clear();
  if (launch.dynamic_shared > 0) layout.find_or_add(nullptr, launch.dynamic_shared, Site());
  run_grid();
  acquire(&end_token);
  reset_stores();
  if (!grid.failed) return kSuccess;
  // The other threads are suspended in the middle of a kernel, and stay so.
  for (auto& suspended : thread_pool) suspended.release();
  thread_pool.clear();
  next_thread = 0;
  return kLaunchFailure;
}

void block_barrier(Site site) {
  const auto& threads = running->owner->threads;
  Barrier& barrier = running->owner->barrier;
  check_site(barrier.arrived, barrier.site, "__syncthreads", site);
  void* const token = &barrier.tokens[barrier.phase];
  release(token);
  if (++barrier.arrived < threads.size()) {
    wait("__syncthreads", &barrier, site);
  } else {
    wake_all(threads, &barrier);
    barrier.arrived = 0;
    barrier.phase ^= 1;
    running->site = site;
    yield();
  }
  acquire(token);
}

void cluster_arrive(Site site) {
  Cluster& cluster = *running->owner->cluster;
  ClusterBarrier& barrier = cluster.barrier;
  if (running->cluster_arrived) fail(site, "a second arrival at a cluster barrier without a wait");
  check_site(barrier.arrived, barrier.arrive_site, "arrival at the cluster barrier", site);
  running->cluster_arrived = true;
  running->cluster_phase = barrier.phase;
  running->site = site;
  if (++barrier.arrived == cluster.blocks.size() * running->owner->threads.size()) {
    barrier.arrived = 0;
    barrier.phase ^= 1;
    barrier.waited[barrier.phase] = 0;
    for (const Block* block : cluster.blocks) wake_all(block->threads, &barrier);
  }
  yield();
}

void cluster_wait(Site site) {
  ClusterBarrier& barrier = running->owner->cluster->barrier;
  if (!running->cluster_arrived) fail(site, "a wait at a cluster barrier without an arrival");
  const unsigned phase = running->cluster_phase;
  check_site(
      barrier.waited[phase]++, barrier.wait_sites[phase], "wait at the cluster barrier", site);
  if (phase == barrier.phase) wait("cluster barrier", &barrier, site);
  running->cluster_arrived = false;
  running->cluster_met = true;
}

uint64_t warp_collective(WarpOp op, uint32_t mask, uint64_t value, unsigned source, Site site) {
  Warp& warp = *running->warp;
  const uint32_t own = 1u << running->lane;
  if (!(mask & own)) fail(site, "mask %08x leaves out lane %u itself", mask, running->lane);
  if (mask & ~warp.running) {
    fail(site, "mask %08x names lanes that are not there: %08x are", mask, warp.running);
  }
  if (op == WarpOp::kShuffle && !(mask >> source & 1)) {
    fail(site, "shuffle from lane %u, which mask %08x leaves out", source, mask);
  }
  Collective& collective = join(warp, op, mask, site);
  running->value = value;
  running->source = source;
  collective.arrived |= own;
  void* const token = &warp.tokens[warp.phase];
  if (op == WarpOp::kSync) release(token);
  if (collective.arrived != mask) {
    wait("warp collective", &collective, site);
  } else {
    if (op == WarpOp::kSync) warp.phase ^= 1;
    complete(warp, collective);
    running->site = site;
    yield();
  }
  if (op == WarpOp::kSync) acquire(token);
  return running->result;
}

void* shared_array(const void* identity, size_t bytes, size_t alignment, Site site) {
  if (alignment > 16) fail(site, "a shared array of %zu-byte alignment; 16 is promised", alignment);
  return array_in(*running->owner, layout.find_or_add(identity, bytes, site));
}

void* dynamic_shared() {
  return grid.launch->dynamic_shared > 0 ? array_in(*running->owner, 0) : nullptr;
}

void* address_in_block(void* address, unsigned rank, const Site& site) {
  Block& own = *running->owner;
  if (rank >= own.cluster->blocks.size()) fail(site, "no block of rank %u in the cluster", rank);
  Block& other = *own.cluster->blocks[rank];
  if (!running->cluster_met) fail(site, "block of rank %u may not have started", rank);
  for (const Thread* thread : other.threads) {
    if (thread->state == State::kExited) fail(site, "block of rank %u may have exited", rank);
  }
  const auto offset = static_cast<size_t>(static_cast<char*>(address) - own.shared);
  for (unsigned i = 0; i < layout.arrays().size(); ++i) {
    const SharedLayout::Array& array = layout.arrays()[i];
    if (offset - array.offset < array.bytes) return array_in(other, i) + (offset - array.offset);
  }
  fail(site, "not an address in shared memory");
}

}  // namespace simt
