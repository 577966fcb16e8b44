# `make demo` and `make test` do everything on a fresh machine that has Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-flower mutants soak audit lint layers types docs unit bench experiments privacy reproduce clean membership wheel-check

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("fedbnn needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/fedbnn compare --methods fedbnn,fedmd,local_bnn,local --out runs/demo --resume

test: lint types layers docs unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: setup
	$(BIN)/lint-imports --no-logo

types: setup
	$(BIN)/mypy

# The site, in site/: pages open from the folder, and load nothing from other hosts.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Each of two processes begins with one half of the tests in their order, so that what a module's tests share is made
# once; who has finished takes over half of what the other has left.
unit: setup
	$(BIN)/pytest -n 2 --dist worksteal -m "not flower"

# Deployments in real Flower processes on 127.0.0.1, one after the other.
test-flower: setup
	$(BIN)/pytest -m flower

# Breaks the privacy layer in dozens of ways, one after the other; fails if the tests do not notice one of them.
mutants: setup
	$(BIN)/python tests/mutants/run.py

# Hostile files and messages, 100,000 of them and as many as atheris can make where it installs, then processes that are
# killed at random moments: about an hour and a half.
soak: setup
	$(BIN)/python tests/soak/fuzz.py --inputs 100000
	-$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fuzz]"
	$(BIN)/python tests/soak/guided.py
	$(BIN)/python tests/soak/kill.py --minutes 20
	$(BIN)/python tests/soak/kill_flower.py --minutes 20

# How tight the audit of each mechanism is, ten minutes each, and with less noise: about two hours on two cores.
audit: setup
	$(BIN)/python benchmarks/audit.py --json benchmarks/results/audit.json

# Builds the wheel and tries it in a new virtual environment that has it and its dependencies alone: help, a run, a list.
wheel-check:
	rm -rf build/wheel && mkdir -p build/wheel
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet --constraint constraints.txt build/wheel/*.whl
	cd build/wheel && venv/bin/fedbnn --help > help.txt && venv/bin/fedbnn config > default.toml
	cd build/wheel && venv/bin/fedbnn run --out runs/trial --set rounds=1 --set partition.clients=3 --set engine.debug=true
	cd build/wheel && venv/bin/fedbnn runs list && venv/bin/fedbnn reproduce --scale quick > studies.txt
	cd build/wheel && venv/bin/python -c 'from fedbnn.runs.watch import WatchServer; from pathlib import Path; print(len(WatchServer(Path("runs/trial")).parts), "parts of the page")'

bench: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python -m pip install --quiet --no-deps bayesian-torch==0.5.0  # the step needs none of its dependencies
	$(BIN)/python benchmarks/bnn_step.py --json benchmarks/results/bnn_step.json
	$(BIN)/python benchmarks/workers.py --json benchmarks/results/workers.json
	$(BIN)/python benchmarks/engines.py --json benchmarks/results/engines.json
	$(BIN)/python benchmarks/noise.py --json benchmarks/results/noise.json
	$(BIN)/python -m benchmarks.methods --json benchmarks/results/methods.json
	$(BIN)/python -m benchmarks.scale --json benchmarks/results/scale.json
	$(PYTHON) -m venv build/pfl  # its dependencies are not ours
	build/pfl/bin/python -m pip install --quiet torch==$$($(BIN)/python -c 'import torch; print(torch.__version__)') pfl==0.6.0
	$(BIN)/python -m benchmarks.throughput --pfl build/pfl/bin/python --json benchmarks/results/throughput.json

# Every method on handwritten digits, about 25 minutes on two cores.
experiments: setup
	$(BIN)/fedbnn reproduce all --scale digits
	$(BIN)/python experiments/ceiling.py

# What privacy costs on MNIST and CIFAR-10, about six hours on two cores; FEDBNN_DATA holds both.
privacy: setup
	$(BIN)/python experiments/tune_privacy.py
	$(BIN)/fedbnn reproduce private budget
	$(BIN)/fedbnn reproduce all --scale privacy
	cp results/cpu/budget.svg docs/privacy.svg

# Membership inference on what clients send, with and without privacy: about 15 minutes on two cores.
membership: setup
	$(BIN)/python experiments/membership.py

# The paper's table and figures, scaled to two cores: about 8 hours, to be stopped and continued; FEDBNN_DATA holds the data.
reproduce: setup
	$(BIN)/fedbnn reproduce all

clean:
	rm -rf $(VENV) build site .mypy_cache .pytest_cache .ruff_cache
