// Threads do not come along into a forked process; OpenMP, and so torch, waits there for those that
// it had, for ever.
#pragma once

namespace fusedops {

// Told before work is divided among threads.
void threads_are_used();

// Whether this process was forked from one that had used threads: it works alone.
bool threads_are_lost();

}  // namespace fusedops
