// Returns the version that a library was built from. Every library has this function, so that a
// loader can refuse a library of another version.
extern "C" __attribute__((visibility("default"))) const char* fusedops_version() {
  return FUSEDOPS_VERSION;
}
