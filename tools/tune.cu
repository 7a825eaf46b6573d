// Measures every family of kernels, with the plans of the package and with others, beside a copy of
// as many bytes. Writes a row of a CSV as soon as a case is measured; tools/pick_policy.py updates
// the list of plans from it. It needs no torch.
//
//   cmake -S tools/tune -B build/tune -G Ninja -DCMAKE_CUDA_ARCHITECTURES=90
//   cmake --build build/tune
//   build/tune/tune --seconds 180 --csv tune.csv
//
// Buffers are rotated over three times the L2, so that no run finds its input in it. Every launch
// comes between two copies, and launches and copies have events of their own; times are medians.
// The result of every candidate is compared once with that of the incumbent, the plan in the
// package. A candidate that differs has an error instead of a time, and so has a launch that fails.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tune/checks.h"
#include "tune/family.h"

namespace tune {
namespace {

namespace device = fusedops::device;

struct Options {
  double seconds = 180;
  int64_t largest = int64_t{2} << 30;
  const char* csv = "tune.csv";
  bool list = false, smoke = false;
};

constexpr char kUsage[] =
    "usage: tune [--seconds N] [--csv FILE] [--largest BYTES] [--smoke | --list]\n"
    "  --seconds N      stops after that time (180)\n"
    "  --csv FILE       the measurements (tune.csv)\n"
    "  --largest BYTES  of a tensor (2 GB)\n"
    "  --smoke          runs every kernel once on few rows; fails if one fails or differs\n"
    "  --list           prints the cases in order, and needs no GPU\n";

[[noreturn]] void stop(int code, const std::string& problem) {
  std::fprintf(stderr, "tune: %s\n", problem.c_str());
  std::exit(code);
}

std::string text_of(Status status) {
  const char* const text = cudaGetErrorString(static_cast<cudaError_t>(status));
  return "CUDA error " + std::to_string(status) + ": " + text;
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) stop(1, std::string(what) + ": " + text_of(status));
}

// --- measuring ----------------------------------------------------------------------------------

constexpr int64_t kAlignment = 256;
constexpr int32_t kMostRuns = 21, kFewestRuns = 5, kWarmUps = 2;
// A case has as many runs as move this many bytes, within the bounds above: 20 ms at 4 TB/s.
constexpr int64_t kBytesOfRuns = int64_t{80} << 30;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Times {
  double ours, copy;  // microseconds
};

struct Outcome {
  Times times{};
  double difference = 0;
  std::string error;
};

// Holds memory of the GPU. reserve() keeps it if it is large enough; otherwise, like allocate()
// always, it frees the memory and allocates exactly `bytes`.
class Arena {
 public:
  cudaError_t reserve(int64_t bytes) { return bytes <= bytes_ ? cudaSuccess : allocate(bytes); }

  cudaError_t allocate(int64_t bytes) {
    cudaFree(base_);
    base_ = nullptr;
    bytes_ = 0;
    const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(&base_), bytes);
    if (status == cudaSuccess) bytes_ = bytes;
    if (status != cudaSuccess) cudaGetLastError();  // clears the error, which is returned here
    return status;
  }
  char* base() const { return base_; }

 private:
  char* base_ = nullptr;
  int64_t bytes_ = 0;
};

// Holds the events before and after a launch or a copy on the stream.
struct Span {
  cudaEvent_t begin, end;
  Span() {
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
  }
  double microseconds() const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    return 1e3 * ms;
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

class Bench {
 public:
  // A smoke run measures once, and gives each array an allocation of its own, so that
  // compute-sanitizer sees accesses beyond it.
  explicit Bench(bool is_smoke)
      : is_smoke_(is_smoke), most_runs_(is_smoke ? 1 : kMostRuns), spans_(2 * kMostRuns) {
    int l2_bytes = 0;
    check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0), "no CUDA device");
    rotated_bytes_ = is_smoke ? 0 : 3 * int64_t{l2_bytes};
  }

  // Lays the question's arrays out in memory, fills its inputs, and keeps the incumbent's results.
  Status prepare(const Question& question) {
    question_ = question;
    family_ = &family_of(question.op);
    arrays_ = family_->arrays(question);
    set_bytes_ = 0;
    for (const Array& array : arrays_) set_bytes_ += aligned(array.bytes);
    copied_bytes_ = family_->bytes(question) / 2;
    sets_ = std::max<int64_t>(1, (rotated_bytes_ + set_bytes_ - 1) / set_bytes_);
    const int64_t of_each = set_bytes_ + aligned(copied_bytes_);
    Status status = arena_.reserve(sets_ * of_each + output_bytes());
    if (is_smoke_ && status == device::kSuccess) status = allocate_arrays();
    if (status != device::kSuccess) return status;
    for (int64_t set = 0; set < sets_; ++set) {
      const Status filled = fill_inputs(memory_of(set));
      if (filled != device::kSuccess) return filled;
    }
    return run_reference();
  }

  // Measures the plan, after its results have been compared with the incumbent's; or measures the
  // incumbent if `plan` is null.
  Outcome measure(const Plan* plan) {
    Outcome outcome;
    Status status = plan ? compare_with_reference(*plan, outcome) : device::kSuccess;
    if (status == device::kSuccess && outcome.error.empty()) status = time(plan, outcome.times);
    if (status != device::kSuccess) {
      outcome.error = text_of(status);
    }
    return outcome;
  }

 private:
  int64_t output_bytes() const {
    int64_t bytes = 0;
    for (const Array& array : arrays_) {
      if (array.role == Role::kOutput) bytes += aligned(array.bytes);
    }
    return bytes;
  }

  // Gives each array of a smoke run an allocation of its own.
  Status allocate_arrays() {
    own_.resize(std::max(own_.size(), arrays_.size()));
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const Status status = own_[i].allocate(words_of(arrays_[i]) * 4);
      if (status != device::kSuccess) return status;
    }
    return device::kSuccess;
  }

  static int64_t words_of(const Array& array) { return (array.bytes + 3) / 4; }

  // Returns the addresses of the arrays of a set; in a smoke run, of the arrays' own allocations.
  Memory memory_of(int64_t set) const {
    Memory memory;
    if (is_smoke_) {
      for (size_t i = 0; i < arrays_.size(); ++i) memory.push_back(own_[i].base());
      return memory;
    }
    char* at = set_at(set);
    for (const Array& array : arrays_) {
      memory.push_back(at);
      at += aligned(array.bytes);
    }
    return memory;
  }

  // The arena has sets_ sets of arrays, then for each set memory that a copy writes to, and then
  // the incumbent's results.
  char* set_at(int64_t set) const { return arena_.base() + set * set_bytes_; }
  char* copy_of(int64_t set) const {
    return arena_.base() + sets_ * set_bytes_ + set * aligned(copied_bytes_);
  }
  char* reference() const { return copy_of(sets_); }

  // Fills the inputs with pseudo-random numbers, and zeros what causality hides in kCausal arrays.
  Status fill_inputs(const Memory& memory) const {
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const Role role = arrays_[i].role;
      if (role == Role::kOutput || role == Role::kScratch) continue;
      const int64_t words = words_of(arrays_[i]);
      Status status = device::launch(
          &fill, check_blocks(words), dim3(kCheckThreads), nullptr,
          static_cast<uint32_t*>(memory[i]), words, role == Role::kBools);
      if (role == Role::kCausal && status == device::kSuccess) {
        status = question_.dtype == DType::kBFloat16 ? hide_as<fusedops::BFloat16>(memory[i])
                                                     : hide_as<float>(memory[i]);
      }
      if (status != device::kSuccess) return status;
    }
    return device::kSuccess;
  }

  // Zeros what causality hides in an array of T.
  template <class T>
  Status hide_as(void* values) const {
    const int64_t count = question_.rows * question_.cols;
    return device::launch(
        &hide<T>, check_blocks(count), dim3(kCheckThreads), nullptr, static_cast<T*>(values), count,
        question_.cols);
  }

  static int64_t check_blocks(int64_t count) {
    return std::min<int64_t>(kCheckBlocks, (count + kCheckThreads - 1) / kCheckThreads);
  }

  // Runs the plan once, or the incumbent if `plan` is null. It writes zeros to the outputs first,
  // so that elements that only one of two kernels writes differ.
  Status run_once(const Plan* plan, const Memory& memory) const {
    for (size_t i = 0; i < arrays_.size(); ++i) {
      if (arrays_[i].role != Role::kOutput) continue;
      const Status status = cudaMemsetAsync(memory[i], 0, arrays_[i].bytes, nullptr);
      if (status != device::kSuccess) return status;
    }
    const Status status = launch(plan, memory);
    return status == device::kSuccess ? cudaDeviceSynchronize() : status;
  }

  Status launch(const Plan* plan, const Memory& memory) const {
    return plan ? family_->launch(question_, *plan, memory)
                : family_->launch_incumbent(question_, memory);
  }

  // Runs the incumbent, and copies its results to reference().
  Status run_reference() const {
    const Memory memory = memory_of(0);
    Status status = run_once(/*plan=*/nullptr, memory);
    char* to = reference();
    for (size_t i = 0; i < arrays_.size() && status == device::kSuccess; ++i) {
      if (arrays_[i].role != Role::kOutput) continue;
      status = cudaMemcpyAsync(to, memory[i], arrays_[i].bytes, cudaMemcpyDeviceToDevice, nullptr);
      to += aligned(arrays_[i].bytes);
    }
    return status;
  }

  // Runs the plan, and compares its outputs with the incumbent's: see compare_array().
  Status compare_with_reference(const Plan& plan, Outcome& outcome) {
    const Memory memory = memory_of(0);
    Status status = run_once(&plan, memory);
    const char* expected = reference();
    for (size_t i = 0; i < arrays_.size() && status == device::kSuccess; ++i) {
      if (arrays_[i].role != Role::kOutput) continue;
      status = compare_array(arrays_[i], memory[i], expected, outcome);
      expected += aligned(arrays_[i].bytes);
    }
    return status;
  }

  // Raises outcome.difference to the largest difference in this array, and sets outcome.error if
  // that is above 2^-6 (16-bit results) or 2^-12 (floats) of the largest value. Smaller ones are
  // rounding errors: with other partitions rows are added up in another order.
  Status compare_array(
      const Array& array, const void* actual, const void* expected, Outcome& outcome) {
    using fusedops::BFloat16;
    const int64_t count = array.bytes / size_of(array.dtype);
    const bool is_16_bit = array.dtype == DType::kBFloat16;
    const Status status = is_16_bit ? compare_as<BFloat16>(actual, expected, count)
                                    : compare_as<float>(actual, expected, count);
    if (status != device::kSuccess) return status;
    const double difference = largest(differences_), magnitude = largest(magnitudes_);
    outcome.difference = std::max(outcome.difference, difference);
    if (!(difference <= (is_16_bit ? 0x1p-6 : 0x1p-12) * magnitude)) {
      outcome.error = "differs from the incumbent";
    }
    return device::kSuccess;
  }

  // Runs compare(), and sets differences_ and magnitudes_ to the largest that each of its threads
  // found.
  template <class T>
  Status compare_as(const void* actual, const void* expected, int64_t count) {
    const int64_t blocks = check_blocks(count);
    const int64_t threads = blocks * kCheckThreads;
    Status status = seen_.reserve(2 * threads * sizeof(float));
    if (status != device::kSuccess) return status;
    auto* const differences = reinterpret_cast<float*>(seen_.base());
    float* const magnitudes = differences + threads;
    status = device::launch(
        &compare<T>, blocks, dim3(kCheckThreads), nullptr, static_cast<const T*>(actual),
        static_cast<const T*>(expected), count, differences, magnitudes);
    if (status != device::kSuccess) return status;
    differences_.resize(threads);
    magnitudes_.resize(threads);
    const size_t bytes = threads * sizeof(float);
    status = cudaMemcpy(differences_.data(), differences, bytes, cudaMemcpyDeviceToHost);
    if (status != device::kSuccess) return status;
    return cudaMemcpy(magnitudes_.data(), magnitudes, bytes, cudaMemcpyDeviceToHost);
  }

  static double largest(const std::vector<float>& values) {
    return *std::max_element(values.begin(), values.end());
  }

  // Sets `times` to medians for the plan, or for the incumbent if `plan` is null. There are as many
  // runs as move kBytesOfRuns, but at least kFewestRuns, and never more than most_runs_.
  Status time(const Plan* plan, Times& times) {
    const int64_t wanted = kBytesOfRuns / std::max<int64_t>(1, 2 * family_->bytes(question_));
    const auto runs =
        static_cast<int32_t>(std::min<int64_t>(most_runs_, std::max<int64_t>(kFewestRuns, wanted)));
    for (int32_t i = most_runs_ > 1 ? -kWarmUps : 0; i < runs; ++i) {
      const Status status = run_between_events(plan, i);
      if (status != device::kSuccess) return status;
    }
    const Status status = cudaDeviceSynchronize();
    if (status != device::kSuccess) return status;
    std::vector<double> ours, copies;
    for (int32_t i = 0; i < runs; ++i) {
      copies.push_back(spans_[2 * i].microseconds());
      ours.push_back(spans_[2 * i + 1].microseconds());
    }
    times = {median(ours), median(copies)};
    return device::kSuccess;
  }

  // Runs the copy and then the plan, between events, on the next sets of buffers. `i` is the number
  // of the run; warm-ups have negative numbers, and use the first spans.
  Status run_between_events(const Plan* plan, int32_t i) {
    const Span &copy = spans_[2 * std::max(i, 0)], &ours = spans_[2 * std::max(i, 0) + 1];
    const int64_t set = next_set_++ % sets_;
    cudaEventRecord(copy.begin, nullptr);
    const Status status = cudaMemcpyAsync(
        copy_of(set), set_at(set), copied_bytes_, cudaMemcpyDeviceToDevice, nullptr);
    cudaEventRecord(copy.end, nullptr);
    if (status != device::kSuccess) return status;
    // The copy has read this set; the plan takes the one that was used longest ago.
    const Memory other = memory_of((set + (sets_ + 1) / 2) % sets_);
    cudaEventRecord(ours.begin, nullptr);
    const Status launched = launch(plan, other);
    cudaEventRecord(ours.end, nullptr);
    return launched;
  }

  bool is_smoke_;
  int32_t most_runs_;
  int64_t rotated_bytes_ = 0;
  std::vector<Span> spans_;
  Arena arena_, seen_;
  std::vector<Arena> own_;
  std::vector<float> differences_, magnitudes_;
  Question question_{};
  const Family* family_ = nullptr;
  std::vector<Array> arrays_;
  int64_t set_bytes_ = 0, copied_bytes_ = 0, sets_ = 1, next_set_ = 0;
};

// --- the table ----------------------------------------------------------------------------------

constexpr char kHeader[] =
    "op,direction,dtype,rows,cols,width,elements,threads,row_threads,blocks,partitions,segment,"
    "fixed,is_incumbent,median_us,copy_us,share_of_copy,bytes,difference,error\n";

// Returns the first columns of a row, up to is_incumbent; measured() returns those after them.
std::string described(const Question& q, const Plan& plan, bool is_incumbent) {
  char text[256];
  std::snprintf(
      text, sizeof(text), "%s,%s,%s,%lld,%lld,%d,%d,%d,%d,%d,%lld,%d,%d,%d", name_of(q.op),
      q.backward ? "backward" : "forward", name_of(q.dtype), static_cast<long long>(q.rows),
      static_cast<long long>(q.cols), plan.width, plan.elements, plan.threads(), plan.row_threads,
      plan.blocks, static_cast<long long>(plan.partitions), plan.segment, plan.fixed, is_incumbent);
  return text;
}

// Returns the columns from median_us on. After an error those of times are empty.
std::string measured(const Outcome& outcome, int64_t bytes) {
  char text[256];
  const Times& times = outcome.times;
  if (outcome.error.empty()) {
    std::snprintf(
        text, sizeof(text), "%.3f,%.3f,%.4f,%lld,%.3g,", times.ours, times.copy,
        times.copy / times.ours, static_cast<long long>(bytes), outcome.difference);
    return text;
  }
  std::snprintf(
      text, sizeof(text), ",,,%lld,%.3g,", static_cast<long long>(bytes), outcome.difference);
  std::string error = outcome.error;
  for (char& c : error) c = c == ',' || c == '\n' ? ';' : c;
  return text + error;
}

// A CSV file, to which each row is written as soon as it is known.
class Table {
 public:
  explicit Table(const char* path) : file_(std::fopen(path, "w")) {
    if (!file_) stop(1, std::string(path) + ": " + std::strerror(errno));
    write(kHeader);
  }
  ~Table() { std::fclose(file_); }

  void write(const std::string& text) {
    std::fputs(text.c_str(), file_);
    std::fflush(file_);
  }

 private:
  std::FILE* file_;
};

// Returns the candidates of a question without the incumbent.
std::vector<Plan> others(const Question& question, const Plan& incumbent) {
  std::vector<Plan> plans = family_of(question.op).candidates(question);
  plans.erase(std::remove(plans.begin(), plans.end(), incumbent), plans.end());
  return plans;
}

// Prints the columns of the table that describe the plans to measure, in order.
void list(const std::vector<Ask>& asks) {
  std::printf("%.*s\n", static_cast<int>(std::strstr(kHeader, ",median") - kHeader), kHeader);
  for (const Ask& ask : asks) {
    const Plan incumbent = family_of(ask.question.op).incumbent(ask.question);
    std::printf("%s\n", described(ask.question, incumbent, /*is_incumbent=*/true).c_str());
    if (!ask.with_candidates) continue;
    for (const Plan& plan : others(ask.question, incumbent)) {
      std::printf("%s\n", described(ask.question, plan, /*is_incumbent=*/false).c_str());
    }
  }
}

// Answers questions one after the other, and writes the table, until the time is over.
class Session {
 public:
  explicit Session(const Options& options)
      : is_smoke_(options.smoke),
        bench_(options.smoke),
        table_(options.csv),
        seconds_(options.seconds) {}

  bool is_over() const {
    const auto since = std::chrono::steady_clock::now() - start_;
    return std::chrono::duration<double>(since).count() >= seconds_;
  }

  // Answers the questions in order, until the time is over or the device is lost.
  void run(const std::vector<Ask>& asks) {
    for (const Ask& ask : asks) {
      if (is_over() || lost_) break;
      answer(ask);
    }
    std::printf(
        "%d cases, %d of them failed%s\n", cases_, failed_, lost_ ? "; the device is lost" : "");
  }

  int failed() const { return failed_; }

 private:
  // Measures the incumbent and, with ask.with_candidates, the candidates beside it.
  void answer(const Ask& ask) {
    const Question& question = ask.question;
    const Plan incumbent = family_of(question.op).incumbent(question);
    announce(question, incumbent, /*is_incumbent=*/true);
    Outcome outcome;
    const Status status = bench_.prepare(question);
    if (status != device::kSuccess) {
      outcome.error = text_of(status);
    } else {
      outcome = bench_.measure(/*plan=*/nullptr);
    }
    // A smoke run asks each question without candidates first, and has recorded the incumbent then.
    if (!is_smoke_ || !ask.with_candidates)
      record(question, incumbent, /*is_incumbent=*/true, outcome);
    if (!ask.with_candidates || !outcome.error.empty()) return;
    for (const Plan& plan : others(question, incumbent)) {
      if (is_over() || lost_) return;
      announce(question, plan, /*is_incumbent=*/false);
      record(question, plan, /*is_incumbent=*/false, bench_.measure(&plan));
    }
  }

  // Prints the plan before its launch, so that the last line names a kernel that hangs.
  void announce(const Question& question, const Plan& plan, bool is_incumbent) {
    std::printf("%s\n", described(question, plan, is_incumbent).c_str());
    std::fflush(stdout);
  }

  // Writes the row of a case and counts it. After an error it checks whether the device is lost.
  void record(
      const Question& question, const Plan& plan, bool is_incumbent, const Outcome& outcome) {
    const int64_t bytes = family_of(question.op).bytes(question);
    table_.write(described(question, plan, is_incumbent) + "," + measured(outcome, bytes) + "\n");
    ++cases_;
    if (outcome.error.empty()) return;
    ++failed_;
    std::fprintf(stderr, "tune: %s\n", outcome.error.c_str());
    // After a trap or a bad access every call fails.
    lost_ = cudaDeviceSynchronize() != cudaSuccess;
  }

  bool is_smoke_;
  Bench bench_;
  Table table_;
  double seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int cases_ = 0, failed_ = 0;
  bool lost_ = false;
};

// --- the command line ---------------------------------------------------------------------------

double number_of(const char* option, const char* text) {
  char* end = nullptr;
  const double value = text ? std::strtod(text, &end) : 0;
  if (!text || *end != '\0' || !(value > 0) || !(value < 1e15)) {
    stop(2, std::string(option) + ": got '" + (text ? text : "") + "', wanted a number above 0");
  }
  return value;
}

Options parsed(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string option = arguments[i];
    const auto value = [&] { return i + 1 < count ? arguments[++i] : nullptr; };
    if (option == "--seconds") {
      options.seconds = number_of("--seconds", value());
    } else if (option == "--largest") {
      options.largest = static_cast<int64_t>(number_of("--largest", value()));
    } else if (option == "--csv") {
      options.csv = value();
      if (!options.csv) stop(2, "--csv: wanted a file");
    } else if (option == "--list") {
      options.list = true;
    } else if (option == "--smoke") {
      options.smoke = true;
    } else if (option == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    } else {
      stop(2, "unrecognized argument: " + option + "\n" + kUsage);
    }
  }
  return options;
}

int run(const Options& options) {
  const std::vector<Ask> asks =
      options.smoke ? smoke_questions(options.largest) : questions(options.largest);
  if (options.list) {
    list(asks);
    return 0;
  }
  Session session(options);
  session.run(asks);
  return options.smoke && session.failed() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tune

int main(int count, char** arguments) { return tune::run(tune::parsed(count, arguments)); }
