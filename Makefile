# The few commands of a newcomer.  Everything else is CMake: cmake --list-presets.

# A python3 with torch, for the comparison that ends `make bench`.
PYTHON ?= /usr/bin/python3
# Options of bench/balance.py, such as BALANCE="--repeats 1 --workloads trace,W1".
BALANCE ?=
# Where `make install` puts things.
PREFIX ?= /usr/local

.PHONY: help build demo demo-elastic demo-big install docs test test-all test-cuda bench bench-balance clean

help:
	@echo "make demo      install what is missing, build, train a small model, let it write"
	@echo "make demo-elastic  as root: the same on a cluster of this machine whose nodes die and return"
	@echo "make demo-big  train and run a model three times larger than its memory limit (12 GB of disk)"
	@echo "make build     install what is missing, build build/evenkeel and build/libevenkeel.so"
	@echo "make install   build, and install to PREFIX (/usr/local): command, library, headers, manual pages"
	@echo "make docs      install doxygen if it is missing, write the API reference to build/api/html"
	@echo "make test      install what is missing, build, run the tests, with sanitizers and without"
	@echo "make test-all  make test and the long tests"
	@echo "make test-cuda  the tests of --device cuda alone, on a machine with a GPU"
	@echo "make bench     measure matrix products, kernels and whole steps against this machine"
	@echo "make bench-balance  the table of balance strategies: hours, as root; goes on where it was ended"
	@echo "make clean     remove what was built"

build:
	tools/setup.sh
	cmake --preset release
	cmake --build --preset release

demo: build
	tools/demo.sh

demo-elastic: build
	tools/demo_elastic.sh

demo-big: build
	tools/demo_big.sh

# ci is release with warnings as errors; asan adds the address and undefined sanitizers.
test:
	tools/setup.sh --test
	cmake --preset ci
	cmake --build --preset ci
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan
	ctest --preset ci

test-all: test
	ctest --preset long

test-cuda:
	tools/setup.sh --test
	cmake --preset ci -DEK_CUDA=ON
	cmake --build --preset ci
	@build/evenkeel info | grep "CUDA: .*; device" || { echo "there is no CUDA device here"; exit 1; }
	ctest --preset ci -R "_gpu$$|^t_cuda$$"

bench: build
	build/evenkeel bench gemm
	build/evenkeel bench kernels
	build/evenkeel bench step
	build/evenkeel bench generate
	@if $(PYTHON) -c "import torch" 2>/dev/null; then \
	    $(PYTHON) bench/against_reference.py --dtypes bf16 --turns 2; \
	else \
	    echo "not measured beside PyTorch: $(PYTHON) has no torch (Debian: python3-torch)"; \
	fi

# With EK_TRACES, the folder of recorded traces, their routing too.
bench-balance: build
	bench/balance.py --command build/evenkeel --resume $(BALANCE)

docs:
	tools/setup.sh --docs
	cmake --preset release
	cmake --build --preset release --target docs

install: build
	cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-asan build-dev build-tsan build-coverage build-fuzz
