# forelog: few verbs. Each sets up what it needs, in .venv, and works on a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
PYTHONS ?= 3.11 3.12 3.13 3.14
CRASH_SECONDS ?= 60
CRASH_SEED ?= 0
EXPLORE_SECONDS ?= 60
EXPLORE_SEED ?= 0
FUZZ_SEED ?= 0
RIGHTS_SEEDS ?= 200
SANITIZE_SECONDS ?= 600
WORLD_SEED ?= 0
SANITIZE_SEED ?= 0
SECONDS ?= 600

.PHONY: help demo test matrix check dist bench bench-spark bench-jobs bench-workers bench-state bench-broker soak-spark docs crash explore world fuzz sanitize hostile promise rights load kill kill-tables cluster pipeline readers coverage clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make demo    set up, then all of it end to end: servers, clients, kill -9, proof, Spark, demo/report.html
demo: $(VENV)/.ready
	@$(RUN) -m examples.demo

## make test    set up, then run every test
test: $(VENV)/.ready
	$(RUN) -m tests

## make matrix  every test on every Python from 3.11 on that is installed, on PATH or in pyenv, each in .venv-3.X
matrix:
	@failed=; for version in $(PYTHONS); do \
	    python=$$(python$$version -c 'import sys; print(sys.executable)' 2>/dev/null || \
	        ls -d $(HOME)/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
	    if [ -z "$$python" ]; then echo "Python $$version is not installed: left out"; continue; fi; \
	    echo "Python $$version: $$python"; \
	    $(MAKE) test PYTHON=$$python VENV=.venv-$$version || failed="$$failed $$version"; \
	done; [ -z "$$failed" ] || { echo "tests failed on Python$$failed"; exit 1; }

## make check   ruff, mypy, and the formatting
check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## make coverage  lines and branches that the tests run, of the Python and of what is compiled; TESTS=tests/log for a part
coverage: $(VENV)/.ready
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/coverage.txt
	$(RUN) -m tests.coverage $(TESTS)

## make bench   the speed of it all, beside peers and physical limits, in one run; written into docs/ and the README
bench: $(VENV)/.ready-bench
	$(RUN) -m benchmarks --out docs

## make bench-spark  of that, only Spark over a log of 1 GiB, beside Parquet and the limits of its transport
bench-spark: $(VENV)/.ready-bench
	$(RUN) -m benchmarks --only spark --out docs

## make soak-spark  a Spark stream over a log that is appended to at 100,000 records/s, for SECONDS=600
soak-spark: $(VENV)/.ready
	$(RUN) -m benchmarks.soak_spark --seconds $(SECONDS)

## make bench-jobs  only the job server beside beanstalkd, which has to be installed
bench-jobs: $(VENV)/.ready-bench
	$(RUN) -m benchmarks --only jobs --out docs

## make bench-workers  only tasks with workers, beside RQ, Huey, Dramatiq, Celery and arq on redis-server, which has to be installed
bench-workers: $(VENV)/.ready-bench
	$(RUN) -m benchmarks --only workers --out docs

## make bench-state  only updates during an enumeration, and restoring beside Redis, shelve and sqlite3
bench-state: $(VENV)/.ready-bench
	$(RUN) -m benchmarks --only state --out docs

## make bench-broker  only the broker beside mosquitto, nats-server and redis-server, which have to be installed
bench-broker: $(VENV)/.ready-bench
	$(RUN) -m benchmarks --only broker --out docs

## make docs    the documentation as a site, in site/
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html is ready"

## make dist    wheel and source distribution in dist/, each then installed and tried in an empty environment
dist: $(VENV)/.ready-dist
	@rm -rf build dist && mkdir build
	$(RUN) -m build --no-isolation --outdir dist . >build/dist.txt 2>&1 || { tail -50 build/dist.txt; exit 1; }
	$(RUN) -m pytest tests/project/test_dist.py --dist-folder dist

## make crash   random crash states for CRASH_SECONDS=60, from CRASH_SEED=0 on
crash: $(VENV)/.ready
	$(RUN) -m tests.crash.soak --seconds $(CRASH_SECONDS) --seed $(CRASH_SEED)

## make explore  readers beside every step of random writers, for EXPLORE_SECONDS=60, from EXPLORE_SEED=0 on
explore: $(VENV)/.ready
	$(RUN) -m tests.testing.explore --seconds $(EXPLORE_SECONDS) --seed $(EXPLORE_SEED)

## make world   simulated worlds for SECONDS=600, from WORLD_SEED=0 on; WORLD=17 repeats one, with its trace
world: $(VENV)/.ready
	$(RUN) -m tests.world $(if $(WORLD),--only $(WORLD) --shorten,--seconds $(SECONDS) --seed $(WORLD_SEED))

## make fuzz    a million lines that no client would send, at a job server, and as many packets at a broker; FUZZ_SEED=0
fuzz: $(VENV)/.ready
	$(RUN) -m tests.jobs.fuzz --seed $(FUZZ_SEED)
	$(RUN) -m tests.broker.fuzz --seed $(FUZZ_SEED)

## make hostile  hostile clients against the three servers: the others' latency, memory, disk; ONLY=words picks some
hostile: $(VENV)/.ready
	$(RUN) -m tests.hostile $(if $(ONLY),--only "$(ONLY)")

## make sanitize  compiled modules under sanitizers, all parsers searched for SANITIZE_SECONDS=600; SANITIZE_SEED=0
sanitize: $(VENV)/.ready
	$(RUN) -m tests.sanitize --seconds $(SANITIZE_SECONDS) --seed $(SANITIZE_SEED)

## make promise  200,000 messages through a broker that is killed 20 times, to subscribers that are cut off 1,000 times
promise: $(VENV)/.ready
	$(RUN) -m tests.broker.promise

## make rights  rights of random users through reloads, takeovers and kills; RIGHTS_SEEDS=200
rights: $(VENV)/.ready
	$(RUN) -m tests.broker.access.rights_model --seeds $(RIGHTS_SEEDS)

## make load    a broker with a subscriber that never reads, 10,000 idle ones, and one that is 5 million messages behind
load: $(VENV)/.ready
	$(RUN) -m tests.broker.load

## make readers  five readers, each beside a writer that rolls, one that runs out of room, one that is killed 30 times
readers: $(VENV)/.ready
	$(RUN) -m tests.readers

## make kill    200 rounds of a writer ended by kill -9
kill: $(VENV)/.ready
	$(RUN) -m pytest tests/faults/test_kill.py tests/state/test_kill.py --kill-rounds 200

## make kill-tables  20 rounds of an ingest ended by kill -9, for each kind of table, in folders and in a bucket
kill-tables: $(VENV)/.ready
	$(RUN) -m pytest tests/spark/ingest/test_ingest_kill.py tests/spark/ingest/test_ingest_bucket.py --kill-rounds 700

## make cluster  Spark on a standalone cluster of two workers, one of which is killed
cluster: $(VENV)/.ready
	$(RUN) -m pytest tests/spark/test_cluster.py --cluster

## make pipeline  the declarative pipeline on Spark, run twice: the second time takes what is new
pipeline: $(VENV)/.ready
	$(RUN) -m pytest tests/spark/pipeline/test_declarative.py --long

## make clean   remove what the others made
clean:
	rm -rf $(VENV) .venv-3.* build dist site demo *.egg-info src/*.egg-info src/forelog/kernel/*.c src/forelog/kernel/*.so src/forelog/jobs/*/*.c src/forelog/jobs/*/*.so

$(VENV)/.ready: requirements/dev.txt pyproject.toml setup.py $(wildcard src/forelog/kernel/*.pyx src/forelog/kernel/*.pxi src/forelog/kernel/*/*.pxi src/forelog/kernel/include/*.h src/forelog/jobs/*/*.py src/forelog/jobs/*/*.pxd)
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): pinned dependencies, then the kernel"
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@$(RUN) setup.py compiler 2>/dev/null || $(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/compiler.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@$(RUN) -c "from forelog.spark.java import main; raise SystemExit(main())" || $(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/java.txt
	@command -v node >/dev/null || $(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/node.txt
	@touch $@

$(VENV)/.ready-bench: $(VENV)/.ready requirements/bench.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/bench.txt
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready requirements/docs.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@touch $@

$(VENV)/.ready-dist: $(VENV)/.ready requirements/dist.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/dist.txt
	@touch $@
