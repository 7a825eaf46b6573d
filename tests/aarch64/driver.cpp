// Runs launches of csrc/launches.def that another process asks for. Both share the memory of a
// file, at one address, in which the arguments and all that they point to are.
//
// A line on standard input is "launch OP ADDRESS" or "workspace OP ADDRESS"; the answer is a
// number: the flags that the launch has raised, or the bytes. The arguments of the program are the
// file and, if denormals are to be flushed, "flush": an operand that is denormal raises a flag only
// then.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"

namespace {

using namespace fusedops;

#if defined(__aarch64__)
void flush_denormals() { __builtin_aarch64_set_fpcr(__builtin_aarch64_get_fpcr() | 1u << 24); }
void clear_flags() { __builtin_aarch64_set_fpsr(0); }
int64_t raised_flags() { return __builtin_aarch64_get_fpsr() & 0x9f; }
#else
void flush_denormals() {}
void clear_flags() {}
int64_t raised_flags() { return 0; }
#endif

template <class Args>
int64_t answer(bool launches, const Args& args) {
  if (!launches) return CpuLauncher().workspace_bytes(args);
  clear_flags();
  CpuLauncher().launch(args);
  return raised_flags();
}

int64_t answer(bool launches, int op, const void* args) {
  int next = 0;
#define LAUNCH(Args) \
  if (op == next++) return answer(launches, *static_cast<const Args*>(args));
#include "launches.def"
#undef LAUNCH
  std::abort();
}

}  // namespace

int main(int count, char** arguments) {
  const int file = open(arguments[1], O_RDWR);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return 1;
  void* const address = reinterpret_cast<void*>(SHARED_ADDRESS);
  if (mmap(address, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
      address) {
    return 1;
  }
  if (count > 2) flush_denormals();
  Dl_info info;
  dladdr(reinterpret_cast<const void*>(&cpu_kernels), &info);
  std::printf("%s %" PRIdPTR "\n", cpu_kernels().isa, reinterpret_cast<intptr_t>(info.dli_fbase));
  std::fflush(stdout);
  char verb[16];
  int op;
  intptr_t args;
  while (std::scanf("%15s %d %" SCNdPTR, verb, &op, &args) == 3) {
    const bool launches = std::strcmp(verb, "launch") == 0;
    std::printf("%" PRId64 "\n", answer(launches, op, reinterpret_cast<const void*>(args)));
    std::fflush(stdout);
  }
}
