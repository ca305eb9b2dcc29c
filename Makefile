# make demo: a first look.  make test: everything that CI checks.  make thorough: random tests with many more examples.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# So many tests at a time: many of them start processes and wait for them.
JOBS ?= 2
# TORCH=torch has the tests that compare with PyTorch run too; without it they are skipped.
TORCH ?=
export MR_HOME ?= $(CURDIR)/demo-data/home

.PHONY: demo test lint types unit thorough clean benchmarks

$(VENV)/.installed: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[test]' $(TORCH)
	touch $@

demo: $(VENV)/.installed
	rm -rf demo-data && mkdir -p demo-data
	$(BIN)/mr generate records demo-data/records.txt --size 20MB --seed 1
	$(BIN)/mr run sort demo-data/records.txt -o demo-data/sorted
	$(BIN)/mr validate demo-data/records.txt demo-data/sorted
	$(BIN)/mr generate text demo-data/text.txt --size 20MB --seed 1
	$(BIN)/mr run top_words demo-data/text.txt -o demo-data/top
	$(BIN)/mr run wordcount demo-data/text.txt -o demo-data/counts
	$(BIN)/mr head -n 5 demo-data/sorted
	$(BIN)/mr head -n 10 demo-data/counts
	$(BIN)/mr cat demo-data/top
	$(BIN)/mr generate points demo-data/points.csv --size 10MB --seed 1
	$(BIN)/mr compare gradient demo-data/points.csv -p iterations=10 --runs 5 --report demo-data/report.html
	@echo
	@echo "The report: $(CURDIR)/demo-data/report.html (open it in a browser)"
	@echo "To go on by hand:  . $(BIN)/activate; export MR_HOME=$(MR_HOME)"

test: $(VENV)/.installed lint types unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# Doctests are looked for in every module, and the backend for PyTorch cannot be imported without it; it has none.
unit: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --ignore tests/test_dag_networks_real.py tests
	$(BIN)/python -m pytest tests/test_dag_networks_real.py  # alone: its links are slow, its cores should not be
	$(BIN)/python -m pytest --doctest-modules --ignore-glob='*/backend_torch*' gfs_sim mapreduce dag jobs

# The properties that are tried on random examples, on twelve times as many, and on others each time.
thorough: $(VENV)/.installed
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m hypothesis tests

clean:
	rm -rf demo-data .mypy_cache .ruff_cache .pytest_cache .hypothesis
