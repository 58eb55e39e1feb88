# Every target sets itself up: a machine with Python 3.10+ and pip is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := src tests bench docs examples

.PHONY: demo test check bench chaos dist clean

demo: $(STAMP)
	$(BIN)/equipoise demo

# In the order of the files: by default those with few tests come last, and some of these are the longest.
test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

bench: $(STAMP)
	cd bench && for file in one_worker all_reduce virtual gossip; do ../$(BIN)/python $$file.py || exit 1; done

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --write

# Wheel and sdist in dist/; then the wheel alone, in an environment of its own, runs the demo.
dist:
	rm -rf dist build/clean
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check build
	build/clean/bin/python -m build
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[demo]"
	cd build && clean/bin/equipoise demo --quick --quiet --out demo-of-wheel

# Most modules of the packages are never imported: without compiling all of them, a third of the time is saved.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info
