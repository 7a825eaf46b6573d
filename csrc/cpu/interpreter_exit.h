// Daemon threads at the end of a Python program.
//
// Before Python 3.14 a thread that takes the interpreter lock once the interpreter is ending is
// ended where it is, by an unwinding that C++ answers with std::terminate(): whatever releases the
// lock around C++ code, as torch does around every op, aborts the program. So a thread waits here
// instead, where it holds no lock, for the process to end; as Python 3.14 makes it wait.
#pragma once

namespace fusedops {

// Returns at once but while the interpreter is ending; never, once it has ended.
void wait_while_interpreter_exits();

}  // namespace fusedops
