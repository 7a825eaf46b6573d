// Usage: planted BUG SCHEDULE. Runs all kernels with the bug planted, where they can have it, and
// checks their results.
// Exit status: 0 all is right, 3 the emulator found an error, 4 a result is wrong.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "async.h"
#include "reduction.h"

namespace {

using planted::kThreads;

constexpr unsigned kBlocks = 4;

// Device memory of exactly these values.
class Array {
 public:
  explicit Array(size_t count) : count_(count) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, count * sizeof(float)) != 0) std::abort();
    values_ = static_cast<float*>(memory);
    std::fill_n(values_, count, 0.0f);
  }
  Array(const Array&) = delete;
  ~Array() { std::free(values_); }
  float* data() const { return values_; }

  // Fills it with 1, 2, 3, ...
  Array& rise() {
    std::iota(values_, values_ + count_, 1.0f);
    return *this;
  }

  // Ends the program where a value is not right(i).
  template <class F>
  void expect(const char* kernel, F right) const {
    for (size_t i = 0; i < count_; ++i) {
      if (values_[i] == right(i)) continue;
      std::fprintf(stderr, "wrong result: %s[%zu] = %g\n", kernel, i, values_[i]);
      std::exit(4);
    }
  }

 private:
  float* values_;
  size_t count_;
};

struct Inputs {
  Array few{100}, values{kThreads}, rows{kBlocks * kThreads}, vectors{4 * kThreads};
  Inputs() {
    for (Array* array : {&few, &values, &rows, &vectors}) array->rise();
  }
};

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
  const Inputs inputs;

  Array extremes(2);
  run({}, &planted::extremes<kBug>, inputs.few.data(), extremes.data(), 100);
  extremes.expect("extremes", [](size_t i) { return i == 0 ? 100.0f : -1.0f; });

  Array sum(1);
  run({}, &planted::tree_sum<kBug>, inputs.values.data(), sum.data());
  sum.expect("tree_sum", [](size_t) { return kThreads * (kThreads + 1) / 2; });

  Array rotated(kThreads);
  run({}, &planted::rotate_lanes<kBug>, inputs.values.data(), rotated.data());
  rotated.expect("rotate_lanes", [](size_t i) { return i / 32 * 32 + (i + 1) % 32 + 1; });

  Array columns(kThreads);
  run({.grid = kBlocks}, &planted::column_sums<kBug>, inputs.rows.data(), columns.data());
  columns.expect("column_sums", [](size_t i) {
    return kBlocks * (i + 1) + kThreads * kBlocks * (kBlocks - 1) / 2;
  });

  Array copied(4 * kThreads);
  run({}, &planted::copy_vectors<kBug>, inputs.vectors.data(), copied.data());
  copied.expect("copy_vectors", [](size_t i) { return i + 1; });
}

// Two clusters of that many blocks.
template <Bug kBug>
void run_mailboxes(unsigned blocks) {
  const Inputs inputs;
  const unsigned all = 2 * blocks;
  Array sums(planted::kRounds * all);
  run({.grid = all, .cluster = blocks}, &planted::mailbox_sums<kBug>, inputs.values.data(),
      sums.data());
  sums.expect("mailbox_sums", [=](size_t i) {
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
