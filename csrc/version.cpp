// Every library answers which version it was built from, so that a loader can compare.
extern "C" __attribute__((visibility("default"))) const char* fusedops_version() {
  return FUSEDOPS_VERSION;
}
