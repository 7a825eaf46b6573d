# Builds for Linux on ARM (aarch64) with a cross compiler, as Debian's g++-12-aarch64-linux-gnu; tests
# run what it made with qemu-aarch64-static. CMAKE_TOOLCHAIN_FILE is the path of this file.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
find_program(CMAKE_CXX_COMPILER NAMES aarch64-linux-gnu-g++ aarch64-linux-gnu-g++-12 REQUIRED)
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
