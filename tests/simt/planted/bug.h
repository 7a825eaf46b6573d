// One bug of each class; without it the kernels are right.
#pragma once

enum class Bug {
  kNone,
  kGlobalOverrun,
  kSharedOverrun,
  kSharedOverrunByPointer,
  kMisaligned,
  kMisalignedShared,
  kUninitialised,
  kMissingReuseBarrier,
  kMissingTreeBarrier,
  kMissingSyncwarp,
  kEarlyExit,
  kDivergentBarrier,
  kHalfWarpShuffle,
  kShuffleOutsideMask,
  kPlainAddAcrossBlocks,
  kWeakCopyWait,
  kMissingBulkWait,
  kClusterRead,
  kClusterExit,
};
