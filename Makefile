# Two commands do everything: `make demo` and `make test`. Both need Python 3.11+ and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO ?= runs/demo
FUZZ ?= 10000

.PHONY: demo test test-slow fuzz lint docs clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kaem needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Trains once; run again, it continues an unfinished run or just shows where the results are.
demo: $(STAMP)
	$(BIN)/kaem train quickstart --out $(DEMO) --resume auto
	@echo "Open $(DEMO)/report.html, $(DEMO)/figures/samples.png and $(DEMO)/figures/densities.png"

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Damaged files for every reader, FUZZ for each (or some: TARGETS="npz zip"); what fails is in build/fuzz.
fuzz: $(STAMP)
	PYTHONPATH=src:tests $(BIN)/python -m fuzz --cases $(FUZZ) $(TARGETS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site
