// mbarrier and asynchronous stores.
#include <cstring>
#include <utility>

#include "runtime.h"

namespace simt {
namespace {

// A phase ends when all arrivals and all expected bytes have come.
struct TransactionBarrier {
  unsigned arrivals, pending;
  int64_t bytes = 0;
  unsigned phase = 0;
  Block* owner;
};

struct Store {
  void* to;
  uint64_t value;
  size_t bytes;
  uint64_t* barrier;
  Site site;
};

std::unordered_map<uint64_t*, TransactionBarrier> barriers;
std::vector<Store> stores;

TransactionBarrier& barrier_at(uint64_t* address, const Site& site) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) fail(site, "this mbarrier is not initialised");
  return found->second;
}

void complete_if_due(uint64_t* address, TransactionBarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  barrier.phase ^= 1;
  wake_all(barrier.owner->threads, address);
}

}  // namespace

void barrier_init(uint64_t* address, unsigned arrivals, Site site) {
  Quiet quiet;
  running->site = site;
  barriers[address] = {.arrivals = arrivals, .pending = arrivals, .owner = running->owner};
}

void barrier_arrive_expecting(uint64_t* address, size_t bytes, Site site) {
  TransactionBarrier& barrier = barrier_at(address, site);
  release(address);
  barrier.bytes += static_cast<int64_t>(bytes);
  if (barrier.pending == 0) fail(site, "more arrivals at an mbarrier than it was made for");
  --barrier.pending;
  complete_if_due(address, barrier);
}

void barrier_wait(uint64_t* address, bool parity, Site site) {
  const TransactionBarrier& barrier = barrier_at(address, site);
  while (barrier.phase == static_cast<unsigned>(parity)) wait("mbarrier", address, site);
  acquire(address);
}

void store_async(
    void* own, uint64_t value, size_t bytes, uint64_t* own_barrier, unsigned rank, Site site) {
  if (reinterpret_cast<uintptr_t>(own) % bytes != 0) {
    fail(site, "st.async of %zu bytes at an address that is not a multiple of it", bytes);
  }
  void* const to = address_in_block(own, rank, site);
  auto* const address = static_cast<uint64_t*>(address_in_block(own_barrier, rank, site));
  barrier_at(address, site);
  release(address);
  Quiet quiet;
  stores.push_back({to, value, bytes, address, site});
}

void check_nothing_comes() {
  const Block& own = *running->owner;
  for (const Store& store : stores) {
    if (barriers.at(store.barrier).owner != &own) continue;
    fail(store.site, "a block exits while this store to its shared memory is on its way");
  }
}

bool complete_one_store() {
  if (stores.empty()) return false;
  std::swap(stores[random_order() % stores.size()], stores.back());
  const Store store = stores.back();
  stores.pop_back();
  on_own_thread([&] {
    acquire(store.barrier);
    std::memcpy(store.to, &store.value, store.bytes);
    release(store.barrier);
  });
  TransactionBarrier& barrier = barriers.at(store.barrier);
  barrier.bytes -= static_cast<int64_t>(store.bytes);
  complete_if_due(store.barrier, barrier);
  return true;
}

void reset_stores() {
  Quiet quiet;
  barriers.clear();
  stores.clear();
}

}  // namespace simt
