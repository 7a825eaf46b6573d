#include "cuda/block/device.h"
#include "cuda/launch/launch.h"

namespace fusedops::cuda {

int query_capture(void* stream, bool& is_captured) {
  return device::query_capture(stream, is_captured);
}

}  // namespace fusedops::cuda
