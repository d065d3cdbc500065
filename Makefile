# SPDX-License-Identifier: Apache-2.0
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
PYTEST := $(PY) -m pytest
PACKAGES := netmodel hostlib nccl_net_plugin paralet_pin paralet_torch sdn sim emul testbed
SCRIPTS := .ci/run $(wildcard scripts/*.sh)
SPEC ?= experiments/nccl.yaml experiments/demo.yaml
BENCH ?= transport
ARGS ?=

.PHONY: help
help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sort | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

.PHONY: setup
setup: ## Install what is missing (Debian packages, .venv) and build the native engine
	@scripts/setup.sh

.PHONY: demo
demo: setup ## A ring over the NCCL plugin and the demo on an emulated fabric, with reports (root; SPEC=FILE for another)
	@for spec in $(SPEC); do .venv/bin/paralet run --overwrite "$$spec"; done

.PHONY: test
test: lint test-unit test-native test-integration ## All checks and tests (root)

.PHONY: test-unit
test-unit: setup ## Python tests that need no privilege (ARGS=... goes to pytest)
	@mkdir -p build && mkdir -p -m 1777 build/pytest # where root's tests, which run as nobody, keep what failed
	@workers=$$((2 * $$(nproc))) # a test waits for about a third of its time
	scripts/unprivileged.sh $(PYTEST) tests --ignore=tests/integration --ignore=tests/start --ignore=tests/attack -n $$workers --dist worksteal -o cache_dir=build/pytest/unit $(ARGS)

.PHONY: test-integration
test-integration: setup ## Tests on emulated fabrics (root; ARGS=... goes to pytest)
	@scripts/test-integration.sh $(ARGS)

.PHONY: attack
attack: setup ## Attacks that are too slow for CI, at most ten minutes (root; ARGS='--scale 0.1' for a tenth of each)
	@timeout --foreground --signal=INT --kill-after=20s 570s $(PY) -m emul.sandbox $(PYTEST) tests/attack -rP --show-capture=stdout -o cache_dir=build/pytest/attack $(ARGS)

.PHONY: test-native
test-native: setup ## C++ tests, as they ship and with sanitizers (Address, UB, Thread), and the fuzzers briefly
	@scripts/test-native.sh

.PHONY: fuzz
fuzz: setup ## Fuzz the engine (ARGS='600s packets': how long, and what)
	@scripts/fuzz.sh $(ARGS)

.PHONY: lint
lint: setup ## ruff, mypy, import-linter, clang-format, clang-tidy, shellcheck
	@scripts/lint.sh

.PHONY: format
format: setup ## Rewrite the sources in the project's format
	@$(PY) -m ruff check --fix --quiet . || true
	$(PY) -m ruff format .
	git ls-files '*.hpp' '*.cpp' '*.h' '*.c' | xargs --no-run-if-empty clang-format-14 -i

.PHONY: bench
bench: setup ## Measure the transport beside TCP (BENCH=NAME for another)
	@.venv/bin/paralet bench $(BENCH) $(ARGS)

.PHONY: nccl
nccl: setup ## Install NVIDIA's wheel of NCCL for the CPU device (ARGS=all: one for each plugin interface; docs/nccl.md)
	@scripts/setup-nccl.sh $(ARGS)

.PHONY: prometheus
prometheus: ## Fetch Debian's Prometheus into build/prometheus, for the tests of dashboards/
	@scripts/setup-programs.sh prometheus prometheus promtool

.PHONY: etcd
etcd: ## Fetch Debian's etcd into build/etcd-server, for the tests of path services that share one
	@scripts/setup-programs.sh etcd-server etcd

.PHONY: slurm
slurm: ## Fetch Debian's Slurm into build/slurm, for the test of its jobs under `paralet pin`
	@scripts/setup-slurm.sh

.PHONY: docs-pictures
docs-pictures: setup ## Draw the pictures of paralet top and of the replay in docs/images (root; chromium)
	@$(PY) -m tests.docs.pictures $(ARGS)

.PHONY: torch
torch: setup ## Install PyTorch for CPUs into .venv, for backend paralet of torch.distributed (docs/torch.md)
	@scripts/setup-torch.sh

.PHONY: test-torch
test-torch: torch ## PyTorch's own tests of a backend, and cases of FSDP2, meshes, checkpoints (minutes; ARGS=-v names each)
	@BACKEND=paralet PYTHONPATH=. $(PY) tests/paralet_torch/pytorch_suite.py $(ARGS)
	@BACKEND=paralet PYTHONPATH=. $(PY) tests/paralet_torch/composed_suite.py $(ARGS)

.PHONY: softroce
softroce: setup ## Fetch what a guest with the kernel's SoftRoCE needs (root; docs/softroce.md)
	@scripts/setup-softroce.sh

.PHONY: test-softroce
test-softroce: setup ## Tests against the kernel's SoftRoCE, in a guest where this kernel has none (root; ARGS=... goes to pytest)
	@scripts/test-softroce.sh $(ARGS)

.PHONY: test-nccl
test-nccl: setup ## The real NCCL on the CPU device: all collectives over the plugin and over sockets, and its tests (ARGS=... goes to pytest)
	@scripts/setup-nccl.sh
	.venv/bin/paralet nccl --device cpu --ranks 4 --sizes 8,64K,1M --json --out build/nccl/ci >build/nccl/ci.json
	$(PYTEST) tests/testbed/nccl -n auto -o cache_dir=build/pytest-nccl $(ARGS)

.PHONY: test-upgrade
test-upgrade: setup ## Build the last release, and test its hosts and path service with today's (docs/upgrading.md; ARGS=... goes to pytest)
	@scripts/test-upgrade.sh $(ARGS)

.PHONY: papers
papers: setup ## Compute docs/papers again: pages, figures and CSV files (10 minutes on two cores)
	@sed -nE 's/^- ([0-9]+): .*\((.*)\.md\)$$/\1 \2/p' docs/papers/index.md | while read -r number name; do
	  .venv/bin/paralet papers "$$number" --page "docs/papers/$$name.md" < /dev/null | tail -n 1
	done

.PHONY: site
site: setup ## Build the documentation site into build/site; a broken link is an error
	@scripts/site.sh

.PHONY: wheel
wheel: setup ## Build a manylinux wheel into dist/
	@scripts/wheel.sh

.PHONY: deb
deb: setup ## Build a Debian package of the plugin, the command, units and dashboards into dist/ (docs/packages.md)
	@$(PY) scripts/deb.py

.PHONY: test-deb
test-deb: deb ## Check the Debian package with lintian, install it in a minimal Debian and run it (root)
	@scripts/test-deb.sh

.PHONY: image
image: deb ## Build images of the plugin and the command, and of the path service, into dist/ (root; docs/packages.md)
	@scripts/image.sh
	scripts/image.sh --service

.PHONY: test-image
test-image: deb ## Build the images and run what they have (root)
	@scripts/image.sh --test
	scripts/image.sh --service --test

.PHONY: rpm
rpm: deb ## Build an RPM of the Debian package's files into dist/ (docs/packages.md)
	@scripts/rpm.sh

.PHONY: test-rpm
test-rpm: deb ## Build the RPM, install it in a minimal Debian and run it (root)
	@scripts/rpm.sh --test

.PHONY: test-trixie
test-trixie: ## The demo and the Debian package on Debian 13, in a folder of build/ (root; ARGS=COMMAND for another test; docs/testing.md)
	@scripts/test-trixie.sh $(ARGS)

.PHONY: test-start
test-start: setup ## The README's start without root as written, in a copy of the checkout (minutes)
	@mkdir -p build && mkdir -p -m 1777 build/pytest
	scripts/unprivileged.sh $(PYTEST) tests/start -o cache_dir=build/pytest/start $(ARGS)

.PHONY: test-wheel
test-wheel: setup ## Build the wheel and use it in an empty environment
	@scripts/wheel.sh --test

.PHONY: lock
lock: ## Lock the versions and hashes of Python packages anew, after a change of pyproject.toml (docs/dependencies.md)
	@scripts/lock.sh

.PHONY: clean
clean: ## Remove what was built; .venv and results/ stay
	@rm -rf build dist .setup emul/bin hostlib/bin hostlib/_engine*.so nccl_net_plugin/bin nccl_net_plugin/lib paralet_pin/bin paralet_pin/lib testbed/nccl/cpu_device/lib *.egg-info .pytest_cache .hypothesis .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
