// run_package MODEL.pt2 INPUTS.pt OUTPUTS.pt: runs a package on a list of tensors that torch.save
// wrote, and saves the tuple of its outputs.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/serialize.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <vector>

std::vector<at::Tensor> load_tensors(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const c10::impl::GenericList list = torch::pickle_load(bytes).toList();
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : list) tensors.push_back(value.toTensor());
  return tensors;
}

void save_tensors(const std::vector<at::Tensor>& tensors, const char* path) {
  const std::vector<c10::IValue> values(tensors.begin(), tensors.end());
  const std::vector<char> bytes = torch::pickle_save(c10::ivalue::Tuple::create(values));
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), bytes.size());
  if (!file.flush()) throw std::runtime_error(std::string("cannot write ") + path);
}

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: run_package MODEL.pt2 INPUTS.pt OUTPUTS.pt");
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  save_tensors(model.run(load_tensors(argv[2])), argv[3]);
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
