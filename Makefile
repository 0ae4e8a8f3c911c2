# `make demo` and `make test` are all a fresh clone needs; each sets up .venv first if that is not done.
PYTHON ?= python3
PY := .venv/bin/python
# pyproject.toml allows this torch and newer ones; `make test-oldest` tries it. torchvision is the one made for it.
OLDEST_TORCH := 2.10.0
OLDEST_TORCHVISION := 0.25.0
OLDEST := .venv-oldest/bin/python

.PHONY: help setup demo test test-cpus test-engines test-oldest check docs docs-serve notebooks zoo bench wheel clean

help:                ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: .venv/.ready  ## make .venv and install prunus and its tools under constraints.txt

.venv/.ready: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

.venv/.demo: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

demo: .venv/.demo    ## the main job: train a small network on scikit-learn's digits and make it 1.5 times as fast
	.venv/bin/prunus prune

test: .venv/.ready   ## the tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not zoo and not engines" -n 2

test-cpus: .venv/.ready  ## the tests that compute with networks, as older processors would run them
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 $(PY) -m pytest -m "numeric and not zoo and not engines" -n 2
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 $(PY) -m pytest -m "numeric and not zoo and not engines" -n 2

.venv-engines/.ready: pyproject.toml constraints.txt
	test -x .venv-engines/bin/python || $(PYTHON) -m venv .venv-engines
	.venv-engines/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,litert]"
	touch $@

test-engines: .venv-engines/.ready  ## the tests of all engines, with litert-torch (2 GB)
	OMP_NUM_THREADS=1 .venv-engines/bin/python -m pytest tests/timing tests/ship -m "not zoo"

test-oldest:         ## the tests with the oldest torch that is supported (PyPI has it for CUDA only: 6 GB)
	test -x $(OLDEST) || $(PYTHON) -m venv .venv-oldest
	sed 's/^torch==.*/torch==$(OLDEST_TORCH)/; s/^torchvision==.*/torchvision==$(OLDEST_TORCHVISION)/' \
		constraints.txt > .venv-oldest/constraints.txt
	$(OLDEST) -m pip install --quiet --disable-pip-version-check -c .venv-oldest/constraints.txt -e ".[dev]"
	OMP_NUM_THREADS=1 $(OLDEST) -m pytest -m "not zoo and not engines" -n 2

check: .venv/.ready  ## ruff and mypy --strict
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# The theme warns of MkDocs 2, which constraints.txt does not let in.
docs: .venv/.ready   ## the documentation, strictly -> build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

docs-serve: .venv/.ready  ## show the documentation while you write it, on 127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --dev-addr 127.0.0.1:8000

notebooks: .venv/.ready  ## run the notebooks of docs/tutorials and store what they print and draw
	$(PY) docs_build/notebooks.py

.venv/.networks: .venv/.ready
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,networks]"
	touch $@

zoo: .venv/.networks ## networks of eight libraries: exact, and how much of each can be pruned -> docs/zoo.md
	OMP_NUM_THREADS=1 $(PY) -m pytest -m zoo
	$(PY) benchmarks/zoo.py --write docs/zoo.md

bench: .venv/.ready  ## speed, as ratios measured in one run
	$(PY) benchmarks/guards.py

wheel: .venv/.ready  ## build the wheel into dist/
	$(PY) -m build --wheel

clean:
	rm -rf .venv .venv-engines .venv-oldest build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
