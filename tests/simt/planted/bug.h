// One bug of each class; without it the kernels are right.
#pragma once

#define PLANTED_BUGS(BUG)     \
  BUG(None)                   \
  BUG(GlobalOverrun)          \
  BUG(SharedOverrun)          \
  BUG(SharedOverrunByPointer) \
  BUG(Misaligned)             \
  BUG(MisalignedShared)       \
  BUG(Uninitialised)          \
  BUG(MissingReuseBarrier)    \
  BUG(MissingTreeBarrier)     \
  BUG(MissingSyncwarp)        \
  BUG(EarlyExit)              \
  BUG(DivergentBarrier)       \
  BUG(HalfWarpShuffle)        \
  BUG(ShuffleOutsideMask)     \
  BUG(PlainAddAcrossBlocks)   \
  BUG(RelaxedArrival)         \
  BUG(LoneClusterWait)        \
  BUG(SecondArrival)          \
  BUG(DivergentArrival)       \
  BUG(MissingClusterWait)     \
  BUG(StuckPhase)             \
  BUG(LostBytes)              \
  BUG(MailSentEarly)          \
  BUG(EarlyClusterExit)

enum class Bug {
#define ENUMERATOR(bug) k##bug,
  PLANTED_BUGS(ENUMERATOR)
#undef ENUMERATOR
};
