// One bug of each class, planted into kernels that are right without it.
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
