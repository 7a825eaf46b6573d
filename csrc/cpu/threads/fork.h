// Says whether a process lost its threads in a fork. A forked process has none of its parent's
// threads, but OpenMP, and with it torch, would wait for them forever.
#pragma once

namespace fusedops {

// Records that this process uses threads. parallel_for() calls it before it shares work among them.
void threads_are_used();

// Whether this process was forked from one that had used threads. If so, it works on one thread.
bool threads_are_lost();

}  // namespace fusedops
