# Needs python3 (3.11 or newer), make and a network; everything else is installed below this directory and the user's
# cache. `make demo` and `make test` are all there is to know.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-long test-random test-spark test-kubernetes coverage lint site program notebooks spark-archive lock clean

# How long the demo runs. Only the command line counts: bash has a variable of this name, which a shell may export.
ifneq ($(origin SECONDS),command line)
SECONDS := 60
endif
# SPARK=1 shows the pipeline's table on Spark next to the demo.
ifneq ($(origin SPARK),command line)
SPARK :=
endif
# The size of `make test-kubernetes`: keys, records a second, and how long Kafka is gone.
KEYS := 200000
RATE := 2000
OUTAGE_S := 120
# Another PySpark than the locked one for `make test-spark`.
ifneq ($(origin PYSPARK),command line)
PYSPARK :=
endif
SPARK_DIRECTORY := $(if $(PYSPARK),.venv/.pyspark-$(PYSPARK))
# With a cache of its own: tests put all jars of the connectors in it on one class path.
SPARK_ENVIRONMENT := $(if $(PYSPARK),PYTHONPATH=$(CURDIR)/$(SPARK_DIRECTORY) SOWSTREAM_CACHE=$(CURDIR)/$(SPARK_DIRECTORY)-cache)
# More for pytest: make test ARGS="tests/merge -x"
ARGS ?=
# What random tests of `make test-random` begin with: another number each time, shown, or the one given.
ifneq ($(origin SEED),command line)
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
# The program of `make program`.
ifneq ($(origin NAME),command line)
NAME :=
endif
# The Python that makes the virtual environment; without it one is looked for.
export PYTHON

BIN := .venv/bin
# Images often forbid Python to write bytecode: then each process of the tests would compile all sources.
BYTECODE := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(CURDIR)/.venv/.bytecode"
# A stamp's name has the checksum of what was installed, so a changed lock is installed and an unchanged one is not.
BUILT := pyproject.toml processor/gateway/web/adapters/package-lock.json $(sort $(shell find processor spark_integration -name node_modules -prune -o -name '*.p[xy][dx]' -print))
RUNTIME := .venv/.runtime-$(shell cat .locks/build.txt .locks/runtime.txt $(BUILT) | cksum | tr ' ' '-')
DEV := .venv/.dev-$(shell cat .locks/build.txt .locks/dev.txt $(BUILT) | cksum | tr ' ' '-')
SITE := .venv/.site-$(shell cat .locks/site.txt | cksum | tr ' ' '-')
NOTEBOOKS := .venv/.notebooks-$(shell cat .locks/notebooks.txt $(BUILT) | cksum | tr ' ' '-')

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

install: $(RUNTIME) ## install Sowstream into .venv, with what `sowstream up` needs: . .venv/bin/activate
	@echo "Sowstream is in .venv. Next: . .venv/bin/activate"

demo: $(if $(SPARK),$(DEV),$(RUNTIME)) ## see it work: a real Kafka, workers, a feed, a live picture; SECONDS=60 SPARK=1: with a table on Spark
	$(BIN)/sowstream demo --seconds $(SECONDS) $(if $(SPARK),--spark)

# Four processes, also on two cores: each waits for its broker and for workers two thirds of the time. The brokers and
# Spark do with Java's quick compiler: they are gone before what the thorough one costs has paid.
# make test ARGS="-n 0 --pdb tests/merge" is one process.
test: $(DEV) ## run the tests, on a real Kafka; ARGS="tests/merge -x"
	$(BIN)/python -m processor.trial.broker
	$(BYTECODE) JAVA_TOOL_OPTIONS="$${JAVA_TOOL_OPTIONS--XX:TieredStopAtLevel=1}" $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5 $(ARGS)

test-long: $(DEV) ## run the tests that wait long; ARGS=--full: random ones at their full length
	$(BIN)/python -m processor.trial.broker
	$(BYTECODE) JAVA_TOOL_OPTIONS="$${JAVA_TOOL_OPTIONS--XX:TieredStopAtLevel=1}" $(BIN)/pytest -m long --durations 40 --durations-min 20 $(ARGS)

# The cluster has the images already; deploy/KUBERNETES-TESTS.md has the commands that build them.
test-kubernetes: $(DEV) ## run the chart in the Kubernetes of K8S_DIR (bin, kubeconfig) or KUBECONFIG; KEYS=200000 RATE=2000 OUTAGE_S=120 ARGS="-k drain"
	SOWSTREAM_TEST_KUBERNETES=1 KEYS=$(KEYS) RATE=$(RATE) OUTAGE_S=$(OUTAGE_S) $(BIN)/pytest -s -m "long or not long" tests/kubernetes $(ARGS)

# What it finds becomes a fixed example of its test.
test-random: $(DEV) ## run the tests of random input on other input than `make test`; SEED=7 repeats a run
	$(BIN)/python -m processor.trial.broker
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "random and not registry and not long" --hypothesis-profile random --hypothesis-seed $(SEED) $(ARGS)

coverage: $(DEV) ## run the tests and list the lines and branches that none of them reaches; ARGS="tests/merge"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/coverage erase
	JAVA_TOOL_OPTIONS="$${JAVA_TOOL_OPTIONS--XX:TieredStopAtLevel=1}" $(BIN)/coverage run -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS); \
	    status=$$?; $(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$status

# All four run, also after one that fails.
lint: $(DEV) ## check code, format, types and who may import whom
	@failed=; for check in "ruff check ." "ruff format --check ." mypy lint-imports; do \
	    echo "== $$check"; $(BIN)/$$check || failed="$$failed $$check,"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

# Its packages are in an environment of their own: a site needs neither the tests' packages nor Sowstream's compiled parts.
site: $(SITE) ## build the pages as a site in build/site, and fail where a link of them leads nowhere; ARGS="serve" shows them
	NO_MKDOCS_2_WARNING=1 .venv/.site/bin/mkdocs $(or $(ARGS),build)

program: $(DEV) ## run a program of tests/programs, such as NAME=faults ARGS="--seed 7"; without NAME it lists them
	$(if $(NAME),$(BIN)/python -m processor.trial.broker)
	$(BIN)/python -m tests.programs$(if $(NAME),.$(NAME)) $(ARGS)

# With PYSPARK these are the tests of the modes in which Spark runs, and then all that do not take long.
test-spark: $(DEV) $(SPARK_DIRECTORY) ## run Spark's long tests, some of which kill it in the midst of what it writes; PYSPARK=4.2.0 runs the modes and the short tests on that version
	$(SPARK_ENVIRONMENT) $(BIN)/python -m processor.trial.broker
	$(SPARK_ENVIRONMENT) $(BIN)/pytest -m long tests/spark$(if $(PYSPARK),/test_modes.py) $(ARGS)
	$(if $(PYSPARK),$(SPARK_ENVIRONMENT) $(BIN)/pytest tests/spark $(ARGS))

.venv/.pyspark-%: | $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $@ pyspark==$*

spark-archive: $(DEV) ## pack Python, Sowstream and its packages for executors: build/sowstream-spark.tar.gz
	$(BIN)/python deploy/spark/archive.py $(ARGS)

notebooks: $(NOTEBOOKS) ## run the notebooks of the client and of spark_integration on a real Kafka, and draw their pictures
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.notebooks $(ARGS)

# What an image installs (image.txt), what the demo needs besides (runtime.txt), what developers need besides (dev.txt),
# what executors of Spark install (spark.txt), Spark itself (pyspark.txt), what runs notebooks (notebooks.txt), what builds the
# site (site.txt), and what builds the project (build.txt).
# `make lock UPGRADE=--upgrade` moves to the newest versions.
UV := .venv/.uv/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(UPGRADE)
OF_WORKERS := --extra avro --extra formats --extra gateway --extra json-schema --extra otel --extra protobuf --extra worker

lock: | $(UV) ## write .locks anew, after a change of pyproject.toml
	$(COMPILE) pyproject.toml $(OF_WORKERS) --output-file .locks/image.txt
	$(COMPILE) pyproject.toml $(OF_WORKERS) --extra embedded --output-file .locks/runtime.txt
	$(COMPILE) pyproject.toml --all-extras --group dev --output-file .locks/dev.txt
	$(COMPILE) -c .locks/dev.txt pyproject.toml $(OF_WORKERS) --extra on-spark --output-file .locks/spark.txt
	$(COMPILE) -c .locks/dev.txt --group notebooks --output-file .locks/notebooks.txt
	$(COMPILE) -c .locks/dev.txt --group site --output-file .locks/site.txt
	printf 'pyspark\n' | $(COMPILE) -c .locks/dev.txt - --output-file .locks/pyspark.txt
	printf 'setuptools>=78\ncython>=3.1\n' | $(COMPILE) - --output-file .locks/build.txt

clean: ## remove what was made here; the user's cache stays
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME):
	@.ci/install runtime $@

$(DEV):
	@.ci/install dev $@

$(NOTEBOOKS): $(DEV)
	@.ci/install notebooks $@

$(SITE):
	@mkdir -p .venv && "$$(.ci/python)" -m venv --clear .venv/.site
	@echo "Installing $$(grep -c '==' .locks/site.txt) packages of .locks/site.txt; some seconds the first time" >&2
	@.venv/.site/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r .locks/site.txt
	@rm -f .venv/.site-* && touch $@

$(UV): $(RUNTIME)
	$(BIN)/python -m venv .venv/.uv
	.venv/.uv/bin/python -m pip install --quiet --disable-pip-version-check uv
