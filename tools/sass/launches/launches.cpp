// Prints the launches that the package's launch code makes for a case, without a GPU.
//
// Standard input has a case a line: operator, dtype, rows, cols. For each case the program prints
// the arrays (region NAME KIND ADDRESS BYTES), the launches (launch SYMBOL BLOCKS CLUSTER X Y
// PARAMETERS) and a line "end". The kind is `rows`, `shared` for what all rows read or add to, or
// `partials`.
// Launches that differ only in their parameters are all printed.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "cuda/block/device.h"
#include "cuda/launch/launch.h"

// The state of the emulator that launch code and kernels name; the kernels are never run.
simt::Config simt::config;
bool simt::has_clusters = true;
simt::View* simt::self = nullptr;
bool simt::remember_call(const std::type_info&, KernelCall) { return true; }

void record_launch(
    const void* kernel, int64_t blocks, uint32_t cluster, dim3 threads,
    const std::vector<unsigned char>& parameters) {
  Dl_info info = {};
  dladdr(kernel, &info);
  std::printf(
      "launch %s %lld %u %u %u ", info.dli_sname, static_cast<long long>(blocks), cluster,
      threads.x, threads.y);
  for (const unsigned char byte : parameters) std::printf("%02x", byte);
  std::printf("\n");
}

namespace fusedops {
namespace {

// Gives arrays made-up addresses, far apart, at which nothing is ever read, and prints the "region"
// line of each.
class Memory {
 public:
  void* add(const char* name, const char* kind, int64_t bytes) {
    const uint64_t address = ++count_ << 40;
    std::printf(
        "region %s %s %llx %lld\n", name, kind, static_cast<unsigned long long>(address),
        static_cast<long long>(bytes));
    return reinterpret_cast<void*>(address);
  }

 private:
  uint64_t count_ = 0;
};

struct Case {
  DType dtype;
  int64_t rows, cols;
};

// Makes the arrays that the arguments of a case point to, and launches kernels for the arguments.
class Arguments {
 public:
  explicit Arguments(Case of) : case_(of) {}

  Rows rows(const char* name) {
    const int64_t bytes = case_.rows * case_.cols * size_of(case_.dtype);
    return {memory_.add(name, "rows", bytes), {case_.cols}, case_.dtype};
  }
  ConstRows read_rows(const char* name) {
    const Rows made = rows(name);
    return {made.data, made.spacing, made.dtype};
  }
  ConstColumns columns(const char* name) {
    return {memory_.add(name, "shared", case_.cols * size_of(case_.dtype)), case_.dtype};
  }
  Columns written_columns(const char* name) {
    return {memory_.add(name, "shared", case_.cols * size_of(case_.dtype)), case_.dtype};
  }
  void* statistics(const char* name) { return memory_.add(name, "rows", case_.rows * 4); }
  // Launches kernels for the arguments, with the size of the case and the workspace that they need.
  template <class Args>
  void launch(Args args) {
    args.rows = case_.rows;
    args.cols = case_.cols;
    if constexpr (requires { args.workspace; }) {
      if (const int64_t bytes = cuda::workspace_bytes(args)) {
        args.workspace = memory_.add("workspace", "partials", bytes);
      }
    }
    if (cuda::launch(args, nullptr) != device::kSuccess) std::printf("refused\n");
  }

  // Returns int64 classes, as torch's are. They read as zeros, none of which is ignored.
  Targets targets() {
    return {
        memory_.add("target", "rows", case_.rows * 8), /*is_int64=*/true, /*has_ignored=*/true,
        /*ignored=*/-100};
  }

  // Returns scores of attention with as many queries as keys or, if there are fewer rows than keys,
  // as rows. `form` is none, causal or bool.
  Scores scores(const std::string& form) {
    const int64_t queries = std::min(case_.cols, case_.rows);
    Scores scores{};
    scores.scale = 0.125;
    scores.mask_value = -INFINITY;
    scores.causal = {/*on=*/form == "causal", queries, /*diagonal=*/case_.cols - queries};
    scores.dims = {1, {case_.rows}};
    if (form == "bool") {
      scores.dims = {2, {case_.rows / queries, queries}};
      scores.mask = {
          memory_.add("mask", "shared", queries * case_.cols), /*strides=*/{0, case_.cols},
          /*col_stride=*/1, /*is_bool=*/true};
    }
    return scores;
  }

 private:
  const Case case_;
  Memory memory_;
};

void softmax(Arguments& make) {
  SoftmaxForward args{};
  args.input = make.read_rows("input");
  args.output = make.rows("output");
  make.launch(args);
}

void softmax_backward(Arguments& make) {
  SoftmaxBackward args{};
  args.grad_output = make.read_rows("grad_output");
  args.output = make.read_rows("output");
  args.grad_input = make.rows("grad_input");
  make.launch(args);
}

template <NormKind kKind, bool kAdds>
void norm(Arguments& make) {
  NormForward args{};
  args.kind = kKind;
  args.input = make.read_rows("input");
  args.output = make.rows("output");
  if (kAdds) {
    args.residual = make.read_rows("residual");
    args.sum = make.rows("sum");
  }
  args.weight = make.columns("weight");
  if (has_mean(kKind)) {
    args.bias = make.columns("bias");
    args.mean = make.statistics("mean");
  }
  args.rstd = make.statistics("rstd");
  args.eps = 1e-5;
  make.launch(args);
}

template <NormKind kKind, bool kAdds>
void norm_backward(Arguments& make) {
  NormBackward args{};
  args.kind = kKind;
  args.grad_output = make.read_rows("grad_output");
  if (kAdds) args.grad_sum = make.read_rows("grad_sum");
  args.input = make.read_rows("input");
  if (has_mean(kKind)) args.mean = make.statistics("mean");
  args.rstd = make.statistics("rstd");
  args.weight = make.columns("weight");
  args.grad_input = make.rows("grad_input");
  args.grad_weight = make.written_columns("grad_weight");
  if (has_mean(kKind)) args.grad_bias = make.written_columns("grad_bias");
  args.eps = 1e-5;
  make.launch(args);
}

void masked_softmax(Arguments& make, const std::string& form) {
  MaskedSoftmaxForward args{};
  args.input = make.read_rows("input");
  args.output = make.rows("output");
  args.scores = make.scores(form);
  make.launch(args);
}

void masked_softmax_backward(Arguments& make, const std::string& form) {
  MaskedSoftmaxBackward args{};
  args.grad_output = make.read_rows("grad_output");
  args.probabilities = make.read_rows("probabilities");
  args.grad_input = make.rows("grad_input");
  args.scores = make.scores(form);
  make.launch(args);
}

void cross_entropy(Arguments& make) {
  CrossEntropyForward args{};
  args.logits = {make.read_rows("input"), /*scale=*/1};
  args.targets = make.targets();
  args.losses = make.statistics("losses");
  args.lse = make.statistics("lse");
  args.lse_error = make.statistics("lse_error");
  make.launch(args);
}

void cross_entropy_backward(Arguments& make) {
  CrossEntropyBackward args{};
  args.logits = {make.read_rows("input"), /*scale=*/1};
  args.targets = make.targets();
  args.losses = make.statistics("losses");
  args.lse = make.statistics("lse");
  args.lse_error = make.statistics("lse_error");
  args.grad_losses = make.statistics("grad_losses");
  args.grad_input = make.rows("grad_input");
  make.launch(args);
}

using Run = void (*)(Arguments&);
const std::map<std::string, Run> kRuns = {
    {"softmax", softmax},
    {"softmax_backward", softmax_backward},
    {"cross_entropy", cross_entropy},
    {"cross_entropy_backward", cross_entropy_backward},
    {"layer_norm", norm<NormKind::kLayer, /*kAdds=*/false>},
    {"layer_norm_backward", norm_backward<NormKind::kLayer, /*kAdds=*/false>},
    {"rms_norm", norm<NormKind::kRms, /*kAdds=*/false>},
    {"rms_norm_backward", norm_backward<NormKind::kRms, /*kAdds=*/false>},
    {"add_rms_norm", norm<NormKind::kRms, /*kAdds=*/true>},
    {"add_rms_norm_backward", norm_backward<NormKind::kRms, /*kAdds=*/true>},
    {"masked_softmax", [](Arguments& make) { masked_softmax(make, "none"); }},
    {"masked_softmax_causal", [](Arguments& make) { masked_softmax(make, "causal"); }},
    {"masked_softmax_bool", [](Arguments& make) { masked_softmax(make, "bool"); }},
    {"masked_softmax_backward", [](Arguments& make) { masked_softmax_backward(make, "none"); }},
    {"masked_softmax_causal_backward",
     [](Arguments& make) { masked_softmax_backward(make, "causal"); }},
    {"masked_softmax_bool_backward",
     [](Arguments& make) { masked_softmax_backward(make, "bool"); }},
};

const std::map<std::string, DType> kDtypes = {
    {"float32", DType::kFloat32},
    {"bfloat16", DType::kBFloat16},
};

}  // namespace
}  // namespace fusedops

int main() {
  std::string op, dtype;
  int64_t rows, cols;
  while (std::cin >> op >> dtype >> rows >> cols) {
    fusedops::Arguments make({fusedops::kDtypes.at(dtype), rows, cols});
    fusedops::kRuns.at(op)(make);
    std::printf("end\n");
  }
  return 0;
}
