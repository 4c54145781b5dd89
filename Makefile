# Every target sets up what it needs.  PYTHON picks the interpreter of a new environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
DOCKER ?= docker
# Tests start some hundred processes: without compiled files each takes another 0.7 s of a core to compile BMQ anew.
export PYTHONDONTWRITEBYTECODE =
LEVEL = authentication
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

.PHONY: help setup dist image demo demo-cluster lint unit unit-first unit-second test console console-pictures it soak scale chart chart-apiserver monitoring mutants bench bench-log bench-kafka bench-matrix bench-scaling bench-latency bench-reading bench-cluster bench-smoke bench-spark bench-limits bench-storage bench-soak bench-flames bench-security bench-transactions bench-cleaning hdfs-jars clients helm hdfs-matrix spark-matrix hdfs-up hdfs-up-secure hdfs-down etcd etcd-up etcd-down proto docs-tables pins clean

help:
	@echo "make setup      environment in $(VENV) with all that development needs"
	@echo "make demo       real flight records through a real client, while the server is killed and restarted; then Spark over its segments"
	@echo "make demo-cluster  the same on HDFS and etcd, with nine processes, while a datanode and a broker are killed;"
	@echo "                with SECURE=1 on a secure HDFS (needs krb5-kdc, krb5-admin-server, krb5-user), at LEVEL=integrity or privacy"
	@echo "make dist       wheel and sdist in dist/"
	@echo "make image      the container image, by docker or what DOCKER names"
	@echo "make lint       ruff, the voice of docstrings and log lines, mypy strict, import-linter"
	@echo "make unit       unit tests but the slow ones, no service (half a minute)"
	@echo "make test       unit, 1,000 simulation seeds, one path through each real service (15 minutes at most)"
	@echo "make console    the console in a real browser (needs Chromium)"
	@echo "make console-pictures  the pictures of docs/console.md, taken anew"
	@echo "make it         all integration tests"
	@echo "make soak       every fault and fuzz at full length"
	@echo "make hdfs-matrix  a story on each version of Hadoop and each protection of HDFS, into docs/operations/hdfs.md"
	@echo "make spark-matrix  Spark's tests on each version of PySpark, into docs/spark.md (fetches each version once)"
	@echo "make scale      a controller with a million partitions; 20,000 transactional ids and 50 producers in a process"
	@echo "make chart      the Helm chart: linted, rendered with many values, valid for three versions of Kubernetes (builds helm with Go, once)"
	@echo "make chart-apiserver  the Helm chart in a real API server: applied, installed, upgraded, rolled back (builds Kubernetes with Go, once)"
	@echo "make monitoring  rules, alerts, dashboards and metrics by promtool and a real Prometheus (builds both with Go, once, in minutes)"
	@echo "make mutants    mistakes in the rules' code, each with the test that must fail by it (JOBS at once)"
	@echo "make bench      every measurement below but bench-smoke, one after the other: all pages of one commit, in a day"
	@echo "make bench-log  measure the log alone, into docs/benchmarks.md"
	@echo "make bench-kafka  measure BMQ beside Kafka, into docs/benchmarks-kafka.md"
	@echo "make bench-matrix  throughput by record size, partitions, codec and client beside Kafka, into docs/benchmarks-matrix.md"
	@echo "make bench-scaling  throughput by processes, controllers to a million partitions, into docs/benchmarks-scaling.md"
	@echo "make bench-cluster  measure lost and added parts, 10,000 partitions and hot ones, and draw docs/benchmarks-failover.md, -crowd, -hot"
	@echo "make bench-latency  measure latency up to saturation beside Kafka, and draw docs/benchmarks-latency.md"
	@echo "make bench-reading  measure consumers of the tail and of a backlog beside Kafka, and draw docs/benchmarks-reading.md"
	@echo "make bench-smoke  in a minute: does a produce or a fetch cost more than it did? beside a fixed reference loop"
	@echo "make bench-spark  measure Spark over segments beside its own Kafka source, into docs/benchmarks-spark.md"
	@echo "make bench-limits  measure BMQ's share of what bare HDFS clients and the kernel can do, into docs/benchmarks-limits.md"
	@echo "make bench-storage  measure and compute what 10,000 partitions cost the NameNode, datanodes and etcd, into docs/benchmarks-storage.md"
	@echo "make bench-flames  flame graphs of producing, consuming, catching up and rest, into docs/benchmarks-flames.md"
	@echo "make bench-security  what TLS, log-ins and ACLs cost, beside Kafka's, into docs/benchmarks-security.md"
	@echo "make bench-transactions  measure transactions, their readers and idle ids beside Kafka, into docs/benchmarks-transactions.md"
	@echo "make bench-cleaning  measure rounds of compaction beside Kafka's log cleaner, into docs/benchmarks-cleaning.md"
	@echo "make bench-soak  four hours of steady load with changes: does anything rise? into docs/benchmarks-soak.md"
	@echo "make hdfs-up    a development HDFS on this machine; make hdfs-down stops it"
	@echo "make hdfs-up-secure  the same with Kerberos, block tokens and TLS (needs krb5-kdc, krb5-admin-server, krb5-user); LEVEL=integrity or privacy"
	@echo "make etcd-up    a development etcd on this machine; make etcd-down stops it"
	@echo "make proto      message code from storage/hdfs/messages.proto and meta/etcd/messages.proto"
	@echo "make pins       deploy/requirements.txt: newest versions and hashes of all that the image installs (needs the package index)"
	@echo "make docs-tables  tables of docs/ and of the chart, drawn from the code"

$(BIN)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev$$(command -v krb5-config > /dev/null && echo ,kerberos)]"
	@touch $@

setup: $(BIN)/.ready

demo: setup
	$(BIN)/python -m demo

demo-cluster: setup hdfs-jars etcd
	$(BIN)/python -m demo.cluster $(if $(SECURE),--secure $(LEVEL))

dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

image:
	$(DOCKER) build --file deploy/Dockerfile --tag bmq:$(VERSION) --build-arg VERSION=$(VERSION) .

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.voice
	$(BIN)/python -m tests.voice_sentences
	$(BIN)/python -m tests.voice_names
	$(BIN)/mypy
	PYTHONPATH=.links $(BIN)/lint-imports

# Two runs of half the rooms each: two workers of one run would each collect all tests, which takes as long as half of them.
UNIT_FIRST := $(addprefix tests/unit/,broker core proxy storage)
UNIT_SECOND := $(filter-out $(UNIT_FIRST),$(patsubst %/__init__.py,%,$(wildcard tests/unit/*/__init__.py))) tests/scenarios

unit: setup
	@$(MAKE) --no-print-directory $(if $(filter output-sync,$(.FEATURES)),--output-sync) -j 2 unit-first unit-second

unit-first:
	$(BIN)/pytest -q -m "not slow" $(UNIT_FIRST)

unit-second:
	$(BIN)/pytest -q -m "not slow" $(UNIT_SECOND)

hdfs-jars: setup
	$(BIN)/python -m tests.services.hdfs jars

clients: setup
	$(BIN)/python -m tests.services.kafka jars
	$(BIN)/python -m tests.services.mirror
	$(BIN)/python -m tests.services.clients
	$(BIN)/python -m tests.services.streams
	$(BIN)/python -m tests.services.connect
	$(BIN)/python -m tests.services.flink

test: setup hdfs-jars etcd
	BMQ_SIM_SEEDS=1000 $(BIN)/pytest -q -n $(JOBS) --dist worksteal -m "not soak" \
		tests/simulation tests/fuzz tests/unit tests/scenarios
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "smoke and not soak" tests/integration

helm: setup
	$(BIN)/python -m tests.services.kubernetes helm

console: setup etcd
	$(BIN)/pytest -q tests/integration/console

console-pictures: setup etcd
	$(BIN)/python -m tests.services.console_pictures

it: setup hdfs-jars etcd clients helm
	$(BIN)/pytest -q -m "not soak" tests/integration
	BMQ_CLIENT_TARGET=bmq-hdfs $(BIN)/pytest -q -m clients tests/integration/clients
	@if $(BIN)/python -m tests.services.prometheus built; then set -x; $(BIN)/pytest -q tests/monitoring; \
	else echo "tests/monitoring left out: it needs what make monitoring builds"; fi

soak: setup hdfs-jars etcd
	BMQ_SIM_SEEDS=80000 $(BIN)/pytest -q -n $(JOBS) tests/simulation
	BMQ_SOAK=1 $(BIN)/pytest -q -n $(JOBS) tests/unit tests/fuzz
	BMQ_SOAK=1 $(BIN)/pytest -q tests/integration

scale: setup etcd
	$(BIN)/pytest -q -s tests/scale

chart: helm
	$(BIN)/pytest -q tests/unit/deploy tests/chart -m "not apiserver"

chart-apiserver: setup etcd
	$(BIN)/python -m tests.services.kubernetes apiserver
	$(BIN)/pytest -q tests/chart -m apiserver

hdfs-matrix: setup
	$(BIN)/python -m tests.hadoop_matrix

spark-matrix: setup hdfs-jars
	$(BIN)/python -m tests.spark_matrix

monitoring: setup etcd hdfs-jars
	$(BIN)/python -m tests.services.prometheus
	$(BIN)/pytest -q tests/monitoring

mutants: setup
	$(BIN)/python -m tests.mutants -j $(JOBS)

bench: bench-log bench-kafka bench-matrix bench-scaling bench-latency bench-reading bench-cluster bench-spark bench-limits bench-storage bench-soak bench-flames bench-security bench-transactions bench-cleaning

bench-log: setup hdfs-jars etcd
	$(BIN)/python -m bench.run

bench-kafka: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.against

bench-matrix: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.matrix

bench-scaling: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.scaling

bench-smoke: setup
	$(BIN)/python -m bench.smoke

bench-latency: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.latency

bench-reading: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.reading

bench-cluster: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.failover
	$(BIN)/python -m bench.crowd
	$(BIN)/python -m bench.hot

bench-spark: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.spark

bench-limits: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.limits

bench-storage: setup hdfs-jars etcd
	$(BIN)/python -m bench.storage_bill

bench-soak: setup hdfs-jars etcd
	$(BIN)/python -m bench.soak

bench-flames: setup hdfs-jars clients
	$(BIN)/python -m bench.flames

bench-security: setup clients
	$(BIN)/python -m bench.security

bench-transactions: setup hdfs-jars etcd clients
	$(BIN)/python -m bench.transactions

bench-cleaning: setup clients
	$(BIN)/python -m bench.cleaning

hdfs-up: hdfs-jars
	$(BIN)/python -m tests.services.hdfs up

hdfs-up-secure: hdfs-jars
	$(BIN)/python -m tests.services.hdfs up --secure --datanodes 3 --level $(LEVEL)

hdfs-down: setup
	$(BIN)/python -m tests.services.hdfs down

etcd: setup
	$(BIN)/python -m tests.services.etcd binary

etcd-up: etcd
	$(BIN)/python -m tests.services.etcd up

etcd-down: setup
	$(BIN)/python -m tests.services.etcd down

proto: setup
	$(BIN)/python -m grpc_tools.protoc -I .links --python_out=.links --pyi_out=.links \
		bmq/storage/hdfs/messages.proto bmq/meta/etcd/messages.proto

docs-tables: setup
	$(BIN)/python -m tests.docs_tables

# By the oldest Python that BMQ runs on: backports that later ones do not need are in the file too.
PINS_EXTRAS := fast oauth otel registry
pins: PYTHON = python3.11
pins:
	$(PYTHON) -m venv .dev/pins
	.dev/pins/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	CUSTOM_COMPILE_COMMAND="make pins" .dev/pins/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(addprefix --extra=,$(PINS_EXTRAS)) \
		--output-file deploy/requirements.txt pyproject.toml

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
