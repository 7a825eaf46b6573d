// What programs may ask any of the libraries that have kernels for the host.
extern "C" __attribute__((visibility("default"))) const char* fusedops_version() {
  return FUSEDOPS_VERSION;
}
