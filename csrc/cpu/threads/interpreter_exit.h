// Makes daemon threads wait at the end of a Python program.
//
// Before Python 3.14, a thread that acquires the interpreter lock while the interpreter is ending
// is terminated on the spot. The unwinding reaches C++ code that releases the lock, as torch does
// around every op, and std::terminate() aborts the program. Threads therefore wait here, without
// the lock, until the process ends, which is what Python 3.14 makes them do.
#pragma once

namespace fusedops {

// parallel_for() calls this when it starts and ends. Once fusedops_interpreter_exits() has
// announced the end of the program, a thread waits here until the process ends. It goes on if the
// interpreter has not begun to finalize a second later. The main thread, and a thread that holds
// the interpreter's lock, do not wait.
void wait_while_interpreter_exits();

}  // namespace fusedops
