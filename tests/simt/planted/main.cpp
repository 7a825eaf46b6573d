// Usage: planted BUG SCHEDULE. Runs all kernels with the bug planted, where they can have it, and
// checks their results.
// Exit status: 0 all is right, 3 the emulator found an error, 4 a result is wrong.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "async.h"
#include "reduction.h"

namespace {

using planted::kThreads;

constexpr unsigned kBlocks = 4;

using Array = std::vector<float>;  // device memory

// 1, 2, 3, ...
Array rising(size_t count) {
  Array values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// Ends the program where a value is not right(i).
template <class F>
void expect(const char* kernel, const Array& values, F right) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == right(i)) continue;
    std::fprintf(stderr, "wrong result: %s[%zu] = %g\n", kernel, i, values[i]);
    std::exit(4);
  }
}

template <class... Params, class... Args>
void run(simt::Launch launch, void (*kernel)(Params...), Args... args) {
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.block = dim3(kThreads);
  if (simt::launch(launch, [=] { kernel(static_cast<Params>(args)...); }) == 0) return;
  std::fprintf(stderr, "emulator: %s\n", simt::error());
  std::exit(3);
}

template <Bug kBug>
void run_reductions() {
  Array extremes(2);
  run({}, &planted::extremes<kBug>, rising(100).data(), extremes.data(), 100);
  expect("extremes", extremes, [](size_t i) { return i == 0 ? 100.0f : -1.0f; });

  Array sum(1);
  run({}, &planted::tree_sum<kBug>, rising(kThreads).data(), sum.data());
  expect("tree_sum", sum, [](size_t) { return kThreads * (kThreads + 1) / 2; });

  Array rotated(kThreads);
  run({}, &planted::rotate_lanes<kBug>, rising(kThreads).data(), rotated.data());
  expect("rotate_lanes", rotated, [](size_t i) { return i / 32 * 32 + (i + 1) % 32 + 1; });

  Array columns(kThreads);
  run({.grid = kBlocks}, &planted::column_sums<kBug>, rising(kBlocks * kThreads).data(),
      columns.data());
  expect("column_sums", columns, [](size_t i) {
    return kBlocks * (i + 1) + kThreads * kBlocks * (kBlocks - 1) / 2;
  });

  Array copied(4 * kThreads);
  run({}, &planted::copy_vectors<kBug>, rising(4 * kThreads).data(), copied.data());
  expect("copy_vectors", copied, [](size_t i) { return i + 1; });
}

// Two clusters of that many blocks.
template <Bug kBug>
void run_mailboxes(unsigned blocks) {
  const unsigned all = 2 * blocks;
  Array sums(planted::kRounds * all);
  run({.grid = all, .cluster = blocks}, &planted::mailbox_sums<kBug>, rising(kThreads).data(),
      sums.data());
  expect("mailbox_sums", sums, [=](size_t i) {
    const unsigned first = i % all / blocks * blocks, round = i / all;
    const unsigned twice_mean = 2 * first + blocks + 1 + 2 * round;
    return planted::kWarps * blocks * twice_mean / 2;
  });
}

template <Bug kBug>
int run_all() {
  run_reductions<kBug>();
  for (const unsigned blocks : {2, 4, 16}) run_mailboxes<kBug>(blocks);
  return 0;
}

simt::Config schedule(const char* name) {
  simt::Config config;
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  if (is("lifo")) config.threads = config.blocks = simt::Order::kLifo;
  if (is("random")) config.threads = config.blocks = simt::Order::kRandom;
  config.concurrent_blocks = is("random");
  config.late_stores = !is("lifo");
  if (!is("fifo")) config.poison = 0x7F;
  return config;
}

}  // namespace

#define RUN_WITH(bug) \
  if (std::strcmp(arguments[1], #bug) == 0) return run_all<Bug::k##bug>();

int main(int count, char** arguments) {
  if (count != 3) return 2;
  simt::config = schedule(arguments[2]);
  PLANTED_BUGS(RUN_WITH)
  std::fprintf(stderr, "no such bug: %s\n", arguments[1]);
  return 2;
}
