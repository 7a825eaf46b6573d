"""The CUDA kernels, executed, raced and inspected on a machine without a GPU.

``csrc/cuda/*.cu`` and the kernel headers are compiled as they are, as C++, over an emulator that
runs every CUDA thread as a fiber: ``include/simt.h`` says what it promises. Tests drive the
package's own launch code through ctypes. What this cannot show: speed, the rounding of approximate
instructions, weak memory order beyond data races, and what ptxas makes of nvcc's PTX.

=====================  ==========================================================================
``include/``           what kernels see: CUDA's names and types, and the emulator (simt.h)
``runtime.cpp`` ...    fibers, warps, blocks, barriers, clusters, asynchronous copies
``host.cpp``           the C interface for Python
``build.py``           compiles it all into ``build/simt``: plain, ASan + UBSan, TSan
``emulator.py``        the library from Python, and arrays in device memory
``cases.py``           softmax: every op, dtype and width, at every length that changes a launch
``norm_cases.py``      the same for LayerNorm and RMSNorm, with every option
``planes_cases.py``    the same for softmax over the rows of planes
``masked_cases.py``    the same for masked softmax, with every kind of operand
``stack_cases.py``     the same for stacks of tensors
``statistics_cases.py``  what a softmax in two steps is run on
``families.py``        all of these cases, run alike
``philox.py``          dropout's random numbers in numpy
``judge.py``           the bounds of errors, applied to the results
``sanitized.py``       the same cases in a process of their own, under a sanitizer
``planted/``           kernels with a bug of each class, which have to be found
``ptx.py`` ...         nvcc's PTX of every kernel, translated and run in the kernels' place
=====================  ==========================================================================
"""
