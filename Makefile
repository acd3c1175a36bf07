# Everything a person or CI types. The work is done in scripts/; `make` alone explains.
.DEFAULT_GOAL := help
.PHONY: help bootstrap demo demo-down test test-all test-quick lint format docs-lint docs-site unit sanity core molecule artifact programs bench bench-plan bench-wishes bench-pair bench-rollout bench-spread bench-on-demand bench-guard bench-live guard-memory mutation speed-fit catalogue compare measurements lock newer release-files clean

PY := .venv/bin/python

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

demo: bootstrap  ## boot two simulated Sparks, serve models on them, show what runs where
	@PYTHONPATH=collections $(PY) scripts/demo.py up

demo-down: bootstrap  ## stop the demo and remove its nodes (built images are kept)
	@PYTHONPATH=collections $(PY) scripts/demo.py down

test: bootstrap  ## every feature once: lint, docs, unit, sanity, artifact, programs, molecule
	@$(PY) scripts/suite.py test

test-all: bootstrap  ## everything: older cores too, Open WebUI, tests marked nightly, 12,000 generated inventories
	@$(PY) scripts/suite.py all

test-quick: bootstrap  ## the part to run between edits: lint, docs, unit tests that do not wait (under 3 minutes)
	@$(PY) scripts/suite.py quick

lint docs-lint unit sanity artifact programs: bootstrap
	@$(PY) scripts/suite.py $@

# One scenario: make molecule SCENARIO=roles
molecule: bootstrap
	@$(PY) scripts/suite.py molecule $(if $(SCENARIO),--scenario $(SCENARIO))

# One row of CI's matrix: make core CORE=2.20 PYTHON=3.13
core: bootstrap  ## unit tests, sanity and syntax on one ansible-core and Python (CORE=, PYTHON=)
	@$(PY) scripts/suite.py core $(if $(CORE),--core $(CORE)) $(if $(PYTHON),--python $(PYTHON))

lint:       ## ansible-lint, yamllint, ruff, mypy, shellcheck, zizmor
docs-lint:  ## documentation of modules and roles, changelog
unit:       ## unit tests and the repository's own promises
sanity:     ## ansible-test sanity and syntax check on every supported ansible-core at hand
molecule:   ## every molecule scenario on two simulated Sparks (SCENARIO=name for one)
artifact:   ## build the collection, install it in an empty place, use it from there
programs:   ## the real LiteLLM under load, the real Open WebUI in a browser

docs-site: bootstrap  ## the documentation as a site in .cache/docs-site/html, every link in it checked
	@$(PY) scripts/docs_site.py

format: bootstrap  ## format the Python code as lint wants it
	@.venv/bin/ruff check --quiet --fix-only --select I . && .venv/bin/ruff format .

bench: bootstrap  ## time the playbooks on the running demo, 1 to 100 hosts, against bare pings
	@$(PY) tests/bench/site_bench.py

bench-plan: bootstrap  ## time plan.yml on fleets of 1 to 1000 hosts; needs no Docker
	@$(PY) tests/bench/plan_bench.py

bench-wishes: bootstrap  ## time proposals for given jobs on fleets of 1 to 100 Sparks; needs no Docker
	@$(PY) tests/bench/wishes_bench.py $(WISHES_ARGS)

bench-pair: bootstrap  ## time the start of a model over two simulated Sparks, less what engine and Ray take
	@$(PY) tests/bench/pair_bench.py

bench-rollout: bootstrap  ## time rollouts over 100 hosts that are folders, run two controllers at once, cut 50 runs at random points; needs no Docker
	@$(PY) tests/bench/rollout_bench.py $(ROLLOUT_ARGS)

bench-spread: bootstrap  ## time what one Spark of the running demo takes from the other, against a raw copy
	@$(PY) tests/bench/spread_bench.py

bench-on-demand: bootstrap  ## time requests to an engine on demand: cold, warm, and 64 streams against a direct connection
	@$(PY) tests/bench/on_demand_bench.py

bench-guard: bootstrap  ## measure what the guard costs while nothing happens, for a minute
	@$(PY) tests/bench/guard_bench.py

bench-live: bootstrap  ## measure what the live page costs: 100 Sparks and one, with a reader and without
	@$(PY) tests/bench/live_bench.py

guard-memory: bootstrap  ## have the kernel of a virtual machine run out of memory, with the guard and without it; needs root, debootstrap and QEMU
	@$(PY) tests/bench/guard_memory.py $(GUARD_MEMORY_ARGS)

mutation: bootstrap  ## change the engine in 30 places, one at a time, and see which changes unit tests catch
	@$(PY) tests/bench/mutation.py --count 30 $(MUTATION_ARGS)

# One version: make catalogue VERSION=0.34.0
catalogue: bootstrap  ## read new vLLM versions (or VERSION=) into the catalogue and say what changed
	@$(PY) scripts/generate_catalogue.py $(foreach one,$(VERSION),--version $(one)) $(CATALOGUE_ARGS)

# The vLLM of an image, of an unpacked package, or a published one: make compare CONFIGS=FOLDER and IMAGE=NAME, or PYTHON=INTERPRETER with SOURCE=FOLDER or VERSION=x.y.z
compare: bootstrap  ## compare the memory arithmetic with a real vLLM's planner (CONFIGS=, and IMAGE=, or SOURCE= or VERSION= with PYTHON=)
	@$(PY) tests/oracle/compare.py --configs $(CONFIGS) $(if $(IMAGE),--image $(IMAGE)) $(if $(SOURCE),--source $(SOURCE)) \
	  $(if $(PYTHON),--python $(PYTHON)) $(if $(VERSION),--version $(VERSION)) $(COMPARE_ARGS)

# A file of export_measurements.yml: make measurements FILE=rows.json
measurements: bootstrap  ## check a file of measured launches (FILE=) and add it to those that overheads are held against
	@PYTHONPATH=collections $(PY) scripts/add_measurements.py $(FILE)

speed-fit: bootstrap  ## fit the constants of the speed model to published rates, and print its errors by class of launch
	@PYTHONPATH=collections $(PY) scripts/speed_fit.py

lock: bootstrap  ## resolve requirements-dev.in into requirements-dev.txt
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url \
	  --generate-hashes --upgrade requirements-dev.in -o requirements-dev.txt
	@git diff --stat -- requirements-dev.txt

newer: bootstrap  ## say which of the versions that hosts and CI get are not the newest
	@PYTHONPATH=collections $(PY) scripts/newer_versions.py

release-files: bootstrap  ## build the tarball with its SBOM and SHA256SUMS into .cache/release
	@PYTHONPATH=collections $(PY) scripts/release.py build .cache/release

clean: ## remove .venv, caches and build results (images and running nodes stay: make demo-down first)
	rm -rf .venv .cache .ansible .pytest_cache .mypy_cache .ruff_cache

bootstrap:
	@scripts/bootstrap
