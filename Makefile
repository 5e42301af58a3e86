# Everything a newcomer runs. Each target works on a fresh machine with Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Of reproductions: full, cpu or smoke; runs at a time; seeds of every cell, if not as the recipe says.
SCALE ?= full
JOBS ?= 1
SEEDS ?=
# Trials of every search of `make field`.
TRIALS ?= 8
# Of a campaign, at most.
MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long lint format bench campaign mutations field clean

help:
	@echo "make demo       install and run the built-in example (digits, 20 clients, LDP, epsilon 8)"
	@echo "make test       install with the dev extra, lint, run the tests"
	@echo "make test-long  the tests that take minutes"
	@echo "make reproduce-privatefl-table9  a published table or figure, beside the printed numbers; also"
	@echo "                reproduce-privatefl, reproduce-all; SCALE=full|cpu|smoke JOBS=2 SEEDS=3"
	@echo "make bench      speed against Opacus, as ratios"
	@echo "make campaign   kills, faults and hostile configurations against runs, with counts; MINUTES=30"
	@echo "make mutations  faults put into a copy of the code one at a time: how many the tests notice"
	@echo "make field      the field's methods beside the papers', learning rates chosen on held-out data; TRIALS=8"
	@echo "make lint       ruff and mypy;  make format  rewrites the code's layout"
	@echo "make clean      remove the environment and caches (results in outputs/ stay)"

# The stamps remember which dependencies are installed; a changed pyproject.toml installs again.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/.installed $@

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/fedpriv run

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/pytest -m "not long" -n auto

test-long: $(VENV)/.installed-dev
	$(BIN)/pytest -m long

bench: $(VENV)/.installed
	$(BIN)/python scripts/bench.py

campaign: $(VENV)/.installed
	$(BIN)/python scripts/campaign.py --minutes $(MINUTES)

mutations: $(VENV)/.installed-dev
	$(BIN)/python scripts/mutations.py

field: $(VENV)/.installed-dev
	$(BIN)/python scripts/field.py --trials $(TRIALS)
	$(BIN)/fedpriv reproduce outputs/field/table1.yaml --scale $(SCALE) --jobs $(JOBS)
	$(BIN)/fedpriv table outputs/field/table1.yaml

# reproduce-pfa-fig3 is the recipe pfa/fig3, reproduce-pfa all of that paper's: the first dash becomes a slash.
reproduce-%: RECIPE = $(shell echo '$*' | sed 's,-,/,')
reproduce-%: $(VENV)/.installed
	$(BIN)/fedpriv reproduce $(RECIPE) --scale $(SCALE) --jobs $(JOBS) $(if $(SEEDS),--seeds $(SEEDS))
	test $(SCALE) = smoke || $(BIN)/fedpriv table $(RECIPE)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
