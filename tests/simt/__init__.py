"""The CUDA kernels, executed, raced and inspected on a machine without a GPU: see README.md."""
