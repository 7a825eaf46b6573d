// cp.async, mbarrier, bulk copies and asynchronous stores.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime.h"

namespace simt {
namespace {

// Runs in the thread that issued the copy, so that the sanitizers see it as that thread's accesses.
void perform(const Copy& copy) {
  std::memcpy(copy.to, copy.source, copy.valid);
  std::memset(static_cast<char*>(copy.to) + copy.valid, 0, copy.bytes - copy.valid);
}

// A phase ends when all arrivals and all expected bytes have come.
struct TransactionBarrier {
  unsigned arrivals, pending;
  int64_t bytes = 0;
  unsigned phase = 0;
  Block* owner;
};

// A bulk copy from `source`, or an asynchronous store of `value`.
struct Transfer {
  void* to;
  const void* source;
  uint64_t value;
  size_t bytes;
  uint64_t* barrier;
  Site site;
};

std::unordered_map<uint64_t*, TransactionBarrier> barriers;
std::vector<Transfer> transfers;

TransactionBarrier& barrier_at(uint64_t* address, const Site& site) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) fail(site, "this mbarrier is not initialised");
  return found->second;
}

void complete_if_due(uint64_t* address, TransactionBarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  barrier.phase ^= 1;
  for (Thread* thread : barrier.owner->threads) {
    if (thread->state == State::kWaiting && thread->waits_at == address) wake(thread);
  }
}

}  // namespace

void copy_async(void* to, const void* source, size_t bytes, size_t valid, Site site) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(source)) % bytes) {
    fail(site, "cp.async of %zu bytes at an address that is not a multiple of it", bytes);
  }
  running->site = site;
  const Copy copy{to, source, bytes, valid};
  if (!config.late_copies) perform(copy);
  Quiet quiet;
  running->open_copies.push_back(config.late_copies ? copy : Copy{to, source, 0, 0});
}

void commit_copies() {
  Quiet quiet;
  running->copy_groups.push_back(std::exchange(running->open_copies, {}));
}

void wait_copies(size_t groups_left) {
  auto& groups = running->copy_groups;
  while (groups.size() > groups_left) {
    for (const Copy& copy : groups.front()) perform(copy);
    Quiet quiet;
    groups.erase(groups.begin());
  }
}

void check_copies_awaited() {
  if (running->open_copies.empty() && running->copy_groups.empty()) return;
  fail(running->site, "a thread exits without having waited for its cp.async");
}

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

void copy_bulk(void* to, const void* source, size_t bytes, uint64_t* address, Site site) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(source) | bytes) % 16) {
    fail(site, "bulk copy whose addresses or size are not multiples of 16");
  }
  barrier_at(address, site);
  release(address);
  Quiet quiet;
  transfers.push_back({to, source, 0, bytes, address, site});
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
  transfers.push_back({to, nullptr, value, bytes, address, site});
}

void check_nothing_comes() {
  const Block& own = *running->owner;
  for (const Transfer& transfer : transfers) {
    if (barriers.at(transfer.barrier).owner != &own) continue;
    fail(transfer.site, "a block exits while this copy to its shared memory is on its way");
  }
}

bool complete_one_transfer() {
  if (transfers.empty()) return false;
  std::swap(transfers[random_order() % transfers.size()], transfers.back());
  const Transfer transfer = transfers.back();
  transfers.pop_back();
  on_own_thread([&] {
    acquire(transfer.barrier);
    std::memcpy(transfer.to, transfer.source ? transfer.source : &transfer.value, transfer.bytes);
    release(transfer.barrier);
  });
  TransactionBarrier& barrier = barriers.at(transfer.barrier);
  barrier.bytes -= static_cast<int64_t>(transfer.bytes);
  complete_if_due(transfer.barrier, barrier);
  return true;
}

void reset_copies() {
  Quiet quiet;
  barriers.clear();
  transfers.clear();
}

}  // namespace simt
