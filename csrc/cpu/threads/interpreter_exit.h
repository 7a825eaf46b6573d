// Daemon threads at the end of a Python program.
//
// Before Python 3.14, a thread that acquires the interpreter lock while the interpreter is ending
// is terminated on the spot. The unwinding reaches C++ code that releases the lock, as torch does
// around every op, and std::terminate() aborts the program. Threads therefore wait here, without
// the lock, until the process ends, which is what Python 3.14 makes them do.
#pragma once

namespace fusedops {

// Kernels call this when they start and end. It returns at once unless the interpreter is ending,
// and never once it has ended.
void wait_while_interpreter_exits();

}  // namespace fusedops
