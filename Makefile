# Needs python3 (3.11 or newer), make and a network; everything else is installed below this directory and the user's
# cache. `make demo` and `make test` are all there is to know.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: drills test-kubernetes test-secured gateway-faults gateway-hostile gateway-law gateway-security bench-gateway help demo test test-long test-random test-array test-registry coverage lint bench bench-all bench-growth bench-soak bench-guard bench-features bench-takeover bench-restore bench-memory bench-conflation bench-subscriptions bench-spark fuzz faults conflated subscriptions claims lives queues engines views pipeline test-spark spark-archive spark-kubernetes notebooks lock clean lint-code lint-format lint-types lint-imports

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
# More for pytest: make test ARGS="tests/merge -x"
ARGS ?=
# What random tests of `make test-random` begin with: another number each time, shown, or the one given.
ifneq ($(origin SEED),command line)
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
# The Python that makes the virtual environment; without it one is looked for.
export PYTHON

BIN := .venv/bin
# A stamp's name has the checksum of what was installed, so a changed lock is installed and an unchanged one is not.
BUILT := pyproject.toml $(sort $(wildcard processor/builtin/delta_merge/*.p[xy][dx] spark_integration/merge/batch/runs/*.p[xy][dx]))
RUNTIME := .venv/.runtime-$(shell cat .locks/build.txt .locks/runtime.txt $(BUILT) | cksum | tr ' ' '-')
DEV := .venv/.dev-$(shell cat .locks/build.txt .locks/dev.txt $(BUILT) | cksum | tr ' ' '-')
NOTEBOOKS := .venv/.notebooks-$(shell cat .locks/notebooks.txt $(BUILT) | cksum | tr ' ' '-')

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

demo: $(if $(SPARK),$(DEV),$(RUNTIME)) ## see it work: a real Kafka, workers, a feed, a live picture; SECONDS=60 SPARK=1: with a table on Spark
	$(BIN)/sowstream demo --seconds $(SECONDS) $(if $(SPARK),--spark)

# Two processes: while one waits for a broker, the other computes. The brokers and Spark do with Java's quick compiler:
# they are gone before what the thorough one costs has paid. make test ARGS="-n 0 --pdb tests/merge" is one process.
test: $(DEV) ## run the tests, on a real Kafka; ARGS="tests/merge -x"
	$(BIN)/python -m processor.trial.broker
	JAVA_TOOL_OPTIONS="$${JAVA_TOOL_OPTIONS--XX:TieredStopAtLevel=1}" $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: $(DEV) ## run the tests that wait long; ARGS=--full: random ones at their full length
	$(BIN)/python -m processor.trial.broker
	$(BIN)/pytest -m long $(ARGS)

test-secured: $(DEV) ## run every role on a Kafka with TLS, client certificates, SCRAM, tokens and ACLs
	$(BIN)/python -m processor.trial.broker
	$(BIN)/pytest -m "long or not long" tests/secured $(ARGS)

# The cluster has the images already; deploy/KUBERNETES-TESTS.md has the commands that build them.
test-kubernetes: $(DEV) ## run the chart in the Kubernetes of K8S_DIR (bin, kubeconfig) or KUBECONFIG; KEYS=200000 RATE=2000 OUTAGE_S=120 ARGS="-k drain"
	SOWSTREAM_TEST_KUBERNETES=1 KEYS=$(KEYS) RATE=$(RATE) OUTAGE_S=$(OUTAGE_S) $(BIN)/pytest -s -m "long or not long" tests/kubernetes $(ARGS)

# What it finds becomes a fixed example of its test.
test-random: $(DEV) ## run the tests of random input on other input than `make test`; SEED=7 repeats a run
	$(BIN)/python -m processor.trial.broker
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "random and not registry and not long" --hypothesis-profile random --hypothesis-seed $(SEED) $(ARGS)

test-array: $(DEV) ## cross all features pairwise in longer histories than `make test`; ARGS="--seeds 20 --seed 7"
	$(BIN)/python -m tests.programs.array $(ARGS)

test-registry: $(DEV) ## run the tests on a real schema registry; fetches 159 MB, once
	$(BIN)/python -m processor.trial.broker
	$(BIN)/pytest tests/registry -m registry $(ARGS)

coverage: $(DEV) ## run the tests and list the lines and branches that none of them reaches; ARGS="tests/merge"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/coverage erase
	JAVA_TOOL_OPTIONS="$${JAVA_TOOL_OPTIONS--XX:TieredStopAtLevel=1}" $(BIN)/coverage run -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS); \
	    status=$$?; $(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$status

lint: lint-code lint-format lint-types lint-imports ## check code, format, types and who may import whom

lint-code: $(DEV)
	$(BIN)/ruff check .

lint-format: $(DEV)
	$(BIN)/ruff format --check .

lint-types: $(DEV)
	$(BIN)/mypy

lint-imports: $(DEV)
	$(BIN)/lint-imports

bench: $(DEV) ## measure one worker beside the pass-through ceiling; ARGS="--rounds 5"
	$(BIN)/python -m tests.programs.benchmarks.throughput $(ARGS)

bench-all: $(DEV) ## measure everything, judge it by the goals, draw it; hours; ARGS="--quick" or ARGS="--only latency growth"
	$(BIN)/python -m tests.programs.benchmarks $(ARGS)

bench-growth: $(DEV) ## measure what a record costs as keys, sizes, partitions or processes grow; ARGS="--only keys"
	$(BIN)/python -m tests.programs.benchmarks.growth $(ARGS)

bench-soak: $(DEV) ## load a worker for half an hour and look at its memory and lag; ARGS="--minutes 1 --svg soak.svg"
	$(BIN)/python -m tests.programs.benchmarks.soak $(ARGS)

bench-guard: $(DEV) ## compare what bench-all measured with what was accepted last; ARGS="--accept" takes it over
	$(BIN)/python -m tests.programs.benchmarks.guard $(ARGS)

bench-features: $(DEV) ## measure what each feature costs a worker; ARGS="--rounds 5"
	$(BIN)/python -m tests.programs.benchmarks.features $(ARGS)

bench-takeover: $(DEV) ## measure how long partitions stand still when a worker dies, with standbys and without; ARGS="--keys 1000000"
	$(BIN)/python -m tests.programs.benchmarks.takeover $(ARGS)

bench-restore: $(DEV) ## measure restores beside Kafka Streams'; ARGS="--warm --records 5000000" for restarts
	$(BIN)/python -m tests.programs.benchmarks.restore $(ARGS)

bench-memory: $(DEV) ## measure what the states of ten million keys take; ARGS="--keys 1000000"
	$(BIN)/python -m tests.programs.benchmarks.memory $(ARGS)

bench-conflation: $(DEV) ## measure one conflate worker beside Kafka Streams' suppress; ARGS="--rounds 5"
	$(BIN)/python -m tests.programs.benchmarks.conflation $(ARGS)

bench-subscriptions: $(DEV) ## measure what subscriptions cost an engine, and how fast snapshots are; ARGS="--only many"
	$(BIN)/python -m tests.programs.benchmarks.subscriptions $(ARGS)

bench-spark: $(DEV) ## measure merge_batch on one and two cores beside one worker; ARGS="--deltas 1000000"
	$(BIN)/python -m tests.programs.benchmarks.spark_merge $(ARGS)

fuzz: $(DEV) ## feed a worker rubbish and account for every record; ARGS="--records 1000000 --seed 7"
	$(BIN)/python -m tests.programs.fuzz $(ARGS)

faults: $(DEV) ## kill, pause, damage and cut off, and account for every record; ARGS="--seed 7 --only kill"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.faults $(ARGS)

drills: $(DEV) ## break a Kafka and a worker as incidents do, repair both with the commands of deploy/DRILLS.md; ARGS="poison_batch"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.drills $(ARGS)

conflated: $(DEV) ## conflate a fast feed, undisturbed and under kill -9, and account for every update; ARGS="--minutes 1"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.conflated $(ARGS)

subscriptions: $(DEV) ## let subscribers join while 20,000 updates a second come, and compare what each holds; ARGS="--records 100000"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.subscriptions $(ARGS)

lives: $(DEV) ## random lives of keys while workers (or Spark) are killed: no version twice; ARGS="--lives 100000 --kills 6 --engine spark"
	$(BIN)/python -m tests.programs.lives $(ARGS)

claims: $(DEV) ## let 50 clients claim the same records while workers are killed, and audit it; ARGS="--keys 34000 --kills 6"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.claims $(ARGS)

queues: $(DEV) ## share a queue among ten consumers under kills and aborts, and audit it; ARGS="--messages 100000 --rate 10000"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.queues $(ARGS)

gateway-law: $(DEV) ## let clients break, resume and read slowly with any options, and compare what each holds; ARGS="--steps 100000"
	$(BIN)/python -m tests.programs.gateway.composition $(ARGS)

gateway-security: $(DEV) ## let many users with random rights ask for what is not theirs, and attack a gateway; ARGS="--users 1000 --updates 100000 --connections 10000"
	$(BIN)/python -m tests.programs.gateway.security $(ARGS)

gateway-faults: $(DEV) ## kill the gateway and the broker, and create the topic again, under clients; ARGS="--clients 1000"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.gateway.killed $(ARGS)
	$(BIN)/python -m tests.programs.gateway.broken $(ARGS)

gateway-hostile: $(DEV) ## send the costliest requests that a client may send, and look how long others wait; ARGS="--records 200000 --numbers 79-88"
	$(BIN)/python -m tests.programs.gateway.hostile $(ARGS)

bench-gateway: $(DEV) ## measure fan-out next to a plain broadcast, and lookups, windows, filters; ARGS="--clients 1000" FIGURES="--records 10000000"
	$(BIN)/python -m tests.programs.gateway.fanout $(ARGS)
	$(BIN)/python -m tests.programs.gateway.figures $(FIGURES)

engines: $(DEV) ## one history through a worker, merge_batch and merge_stream, and compare what each kept; ARGS="--commands 100000"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.engines $(ARGS)

views: $(DEV) ## views: random histories equal to SQL, kills, injected faults, speed; ARGS="histories --count 10000"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.views $(or $(ARGS),histories)

# How long the feed has its full rate; the kills and the moves to Spark and back take a few minutes more.
pipeline: $(DEV) ## run the whole pipeline on Spark under a feed and kills, and audit it; SECONDS=60 ARGS="--seed 7 --kills 3"
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.pipeline --seconds $(SECONDS) $(ARGS)

# The cluster has the images already; the how-to page has the commands that build them.
spark-kubernetes: $(DEV) ## run the pipeline in the Kubernetes of K8S_DIR (bin, kubeconfig) or KUBECONFIG, and kill its pods; ARGS="--broker-image apache/kafka:4.1.1"
	$(BIN)/python -m tests.programs.spark_kubernetes $(ARGS)

# With PYSPARK all other tests of Spark run on that version; 4.1.1 is the newest whose Kafka connector was to be had.
test-spark: $(DEV) $(SPARK_DIRECTORY) ## run Spark's long tests, some of which kill it in the midst of what it writes; PYSPARK=4.1.1 runs the others on that version
	$(BIN)/python -m processor.trial.broker
	$(if $(PYSPARK),PYTHONPATH=$(CURDIR)/$(SPARK_DIRECTORY)) $(BIN)/pytest $(if $(PYSPARK),,-m long) tests/spark $(ARGS)

.venv/.pyspark-%: | $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $@ pyspark==$*

spark-archive: $(DEV) ## pack Python, Sowstream and its packages for executors: build/sowstream-spark.tar.gz
	$(BIN)/python deploy/spark/archive.py $(ARGS)

notebooks: $(NOTEBOOKS) ## run the notebooks of the client and of spark_integration on a real Kafka, and draw their pictures
	$(BIN)/python -m processor.trial.broker
	$(BIN)/python -m tests.programs.notebooks $(ARGS)

# What an image installs (image.txt), what the demo needs besides (runtime.txt), what developers need besides (dev.txt),
# what executors of Spark install (spark.txt), Spark itself (pyspark.txt), what runs notebooks (notebooks.txt), and what builds the project (build.txt).
# `make lock UPGRADE=--upgrade` moves to the newest versions.
UV := .venv/.uv/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(UPGRADE)
OF_WORKERS := --extra avro --extra formats --extra gateway --extra json-schema --extra otel --extra protobuf

lock: | $(UV) ## write .locks anew, after a change of pyproject.toml
	$(COMPILE) pyproject.toml $(OF_WORKERS) --output-file .locks/image.txt
	$(COMPILE) pyproject.toml $(OF_WORKERS) --extra embedded --output-file .locks/runtime.txt
	$(COMPILE) pyproject.toml --all-extras --group dev --output-file .locks/dev.txt
	$(COMPILE) -c .locks/dev.txt pyproject.toml $(OF_WORKERS) --extra on-spark --output-file .locks/spark.txt
	$(COMPILE) -c .locks/dev.txt --group notebooks --output-file .locks/notebooks.txt
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

$(UV): $(RUNTIME)
	$(BIN)/python -m venv .venv/.uv
	.venv/.uv/bin/python -m pip install --quiet --disable-pip-version-check uv
