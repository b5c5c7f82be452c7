# Two commands, each with all that it needs: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready

.PHONY: run test test-slow attack bench docs tutorials lint types clean

run: $(READY)
	$(BIN)/python -m nl_lightning compare --config configs/obd.yaml
	$(BIN)/python examples/known_truth.py

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not attack"

# Several processes that are killed, lost or started by a cluster's launcher.
test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow

# Damaged files, hostile input, misuse: each is refused in one clear text, or has the right result.
attack: $(READY)
	$(BIN)/python -m pytest -n 2 -m attack

bench: $(READY)
	$(BIN)/python -m benchmarks

# The documentation, in site/. A broken link or reference, or anything that would be loaded from elsewhere, is an error.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

# Execute the notebooks of the tutorials, and save them with their outputs.
tutorials: $(READY)
	$(BIN)/python docs/tutorials/execute.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# torch comes first and alone, so that pip takes the pinned build and not the newest one that another package asks for.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'the pins need Python 3.11 or newer: make PYTHON=...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --editable '.[dev]' -c constraints.txt
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]' -c constraints.txt
	touch $@

clean:
	rm -rf $(VENV) site .peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
