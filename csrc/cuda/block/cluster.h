// A RowScope is what holds a row that stays in registers: a block, or all blocks of a cluster, of
// which each holds a range of columns.
//
// Contract: a kernel makes one scope, issues its loads, calls join() and then reduce() any number
// of times, every thread the same calls. reduce() takes a float or a Pair<float>, and in one block
// also doubles; all threads of the scope get the same bits. Reductions use two arrays of shared
// memory in turn, so that a single barrier inside each reduction is enough, and kernels need none
// around it. In a cluster, blocks consist of whole warps.
// Order: values are combined by a butterfly over the lanes of each warp, and then over the warps of
// the block, or of all blocks of the cluster. The order depends on the numbers of threads and
// blocks alone.
#pragma once

#include "cuda/block/reduce.h"
#include "cuda/block/tile.h"
#include "cuda/launch/plan.h"

namespace fusedops::cuda {

struct ColumnRange {
  int32_t start, cols;
};

// Is the scope of a block that has a row for each threadIdx.y. kThreads_ is the number of threads
// that share a row if the plan fixes it, else 0.
template <int kThreads_>
class RowInBlock {
 public:
  static constexpr int kThreads = kThreads_;
  static constexpr bool kIsCluster = false;

  FUSEDOPS_DEVICE RowInBlock() {
    FUSEDOPS_SHARED(Place, places, 2 * kMaxWarps);
    places_ = places;
  }

  // Returns the columns that this block holds, up to kElements a thread: all columns of the row.
  template <int kElements>
  FUSEDOPS_DEVICE ColumnRange own_columns(int32_t cols) const {
    return {0, cols};
  }

  // Does nothing: one block holds the row, and waits for no other.
  FUSEDOPS_DEVICE void join() {}

  // Reductions alternate between two arrays. Why do two suffice? Before a warp writes to an array
  // again it passes the barrier of the reduction in between. Every warp has then reached that
  // barrier, and so has read the array.
  template <class Op, class T>
  FUSEDOPS_DEVICE T reduce(T value) {
    static_assert(sizeof(T) <= sizeof(Place));
    T* const values = reinterpret_cast<T*>(places_ + turn_ * kMaxWarps);
    turn_ ^= 1;
    return row_reduce<Op>(value, values);
  }

  FUSEDOPS_DEVICE bool is_first() const { return true; }

 private:
  using Place = uint4;
  Place* places_;
  int32_t turn_ = 0;
};
using OneBlock = RowInBlock<0>;

// These functions send `value` to the address of `local` in the block with that rank in the
// cluster, through device::store_cluster(). There is an overload for each type that a cluster
// reduces.
using device::store_cluster;
FUSEDOPS_DEVICE void store_cluster(
    Pair<float>* local, Pair<float> value, uint64_t* barrier, uint32_t rank) {
  device::store_cluster(&local->first, value.first, value.second, barrier, rank);
}

// Is the scope of a row in a cluster. Each block has two mailboxes: arrays in its shared memory
// with a place for each warp of the cluster. Reductions use them in turn. To reduce, every warp
// sends its value to the current mailbox of each block, its own block included, and combines the
// values in its own block's mailbox. An mbarrier counts the bytes that arrive in a mailbox.
//
// No block writes to a block that has exited: a block waits for every value of its last reduction,
// after which nothing is sent to it. Nor does a value overwrite another that is still read, though
// reduction r + 2 uses the mailbox of reduction r: a warp sends its value of r + 2 only when it has
// the values of r + 1 from all warps, and each of them sent its own only after all its lanes had
// read the values of r.
//
// kThreads_ is kByWarp where each warp of a block has neighbouring columns, else 0.
template <int kThreads_>
class RowInCluster {
 public:
  static constexpr int kThreads = kThreads_;
  static constexpr bool kIsCluster = true;

  FUSEDOPS_DEVICE RowInCluster()
      : blocks_(device::cluster_blocks()), rank_(device::cluster_rank()) {
    FUSEDOPS_SHARED(uint64_t, barriers, 2);
    FUSEDOPS_SHARED(Place, mailboxes, 2 * kPlaces);
    barriers_ = barriers;
    mailboxes_ = mailboxes;
    if (threadIdx.x == 0) {
      device::mbarrier_init(barriers);
      device::mbarrier_init(barriers + 1);
    }
    device::cluster_arrive();  // join() waits for the other blocks
  }

  // Returns the columns of this block or, with kByWarp, of this warp: up to kElements a thread.
  template <int kElements>
  FUSEDOPS_DEVICE ColumnRange own_columns(int32_t cols) const {
    constexpr int32_t kLanes = device::kWarpLanes;
    const int32_t of_block = static_cast<int32_t>(blockDim.x) * kElements;
    const int32_t most = kThreads == kByWarp ? kLanes * kElements : of_block;
    int32_t start = rank_ * of_block;
    if (kThreads == kByWarp) start += static_cast<int32_t>(threadIdx.x / kLanes) * most;
    return {start, most < cols - start ? most : cols - start};
  }

  // Waits until the mailboxes of all blocks are ready.
  FUSEDOPS_DEVICE void join() { device::cluster_wait(); }

  template <class Op, class T>
  FUSEDOPS_DEVICE T reduce(T value) {
    static_assert(sizeof(T) <= sizeof(Place));
    constexpr int32_t kLanes = device::kWarpLanes;
    const int32_t lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
    const int32_t count = blockDim.x / kLanes * blocks_;
    // `turn` picks the mailbox, and `parity` is the phase of that mailbox's mbarrier.
    const uint32_t turn = uses_ % 2, parity = uses_ / 2 % 2;
    uint64_t* const barrier = barriers_ + turn;
    T* const mailbox = reinterpret_cast<T*>(mailboxes_ + turn * kPlaces);
    ++uses_;

    if (threadIdx.x == 0) device::mbarrier_expect(barrier, count * sizeof(T));
    value = warp_reduce<Op>(value, kLanes);
    __syncwarp();  // all lanes of this warp have read the values of the previous reduction
    if (lane < blocks_) store_cluster(mailbox + warp * blocks_ + rank_, value, barrier, lane);

    device::mbarrier_wait(barrier, parity);
    return warp_reduce<Op>(combined_share<Op>(mailbox, count), kLanes);
  }

  // Returns whether this block has the row's first columns. That block writes the values of which
  // a row has one, such as its mean.
  FUSEDOPS_DEVICE bool is_first() const { return rank_ == 0; }

 private:
  using Place = uint2;
  static constexpr int32_t kPlaces = kMaxWarps * kMaxClusterBlocks;

  // Returns the combination of this lane's share of `count` values, every 32nd of them, which it
  // loads kInFlight at a time.
  template <class Op, class T>
  static FUSEDOPS_DEVICE T combined_share(const T* values, int32_t count) {
    constexpr int32_t kLanes = device::kWarpLanes, kInFlight = 4;
    T share = Op::template identity<T>();
#pragma unroll 1
    for (int32_t first = threadIdx.x % kLanes; first < count; first += kInFlight * kLanes) {
      T loaded[kInFlight];
#pragma unroll
      for (int32_t i = 0; i < kInFlight; ++i) {
        const int32_t at = first + i * kLanes;
        loaded[i] = at < count ? values[at] : Op::template identity<T>();
      }
#pragma unroll
      for (int32_t i = 0; i < kInFlight; ++i) share = Op::combine(share, loaded[i]);
    }
    return share;
  }

  int32_t blocks_, rank_;
  uint64_t* barriers_;
  Place* mailboxes_;
  uint32_t uses_ = 0;
};

using Cluster = RowInCluster<0>;

// Unaligned rows are laid out by warp (kByWarp): the offsets between a thread's vectors are then
// constants. To compute an address for each vector would be a third of all instructions.
template <class T, int kWidth>
using ClusterOf = RowInCluster<kIsWide<T, kWidth> ? 0 : kByWarp>;

// Returns the row of this cluster in a launch that has a cluster for each row from first_row on.
FUSEDOPS_DEVICE int64_t cluster_row(int64_t first_row) {
  return first_row + blockIdx.x / device::cluster_blocks();
}

}  // namespace fusedops::cuda
