# make demo   trains, compares and draws in about two minutes on two cores
# make test   every check that must pass before a change lands
# Each sets up all it needs in .venv, and is quick the second time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
NATIVE := $(wildcard src/equalbits/runtime/native/*.c src/equalbits/runtime/native/*.h src/equalbits/runtime/native/*.cpp) \
          src/equalbits/runtime/native/CMakeLists.txt
OUT    ?= runs/demo

.PHONY: demo test lint clean

demo: $(READY)
	$(BIN)/python -m equalbits demo --out $(OUT)

test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not gpu and not slow and not browser"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
