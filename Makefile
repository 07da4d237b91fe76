# hooksaga: `make test` is all that a change must pass; the parts can be run alone.

CARGO ?= cargo
DENY_VERSION := 0.20.2
BUILT := $(or $(CARGO_TARGET_DIR),target)
# Runs a part and says how long it took.
TIMED := scripts/timed

.PHONY: test tools fmt lint deny advisories build-tests unit torture availability doc run dist test-dist

test: tools fmt lint deny unit

tools: ## what the tests need: installed when root, named otherwise
	@$(TIMED) tools scripts/install-test-tools

fmt:
	@$(TIMED) fmt $(CARGO) fmt --all --check

lint:
	@$(TIMED) lint $(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings

deny: ## licences, bans, sources
	@command -v cargo-deny >/dev/null || $(TIMED) cargo-deny $(CARGO) install --locked --debug cargo-deny@$(DENY_VERSION)
	@$(TIMED) deny $(CARGO) deny --log-level error check licenses bans sources

advisories: ## needs the network
	@$(TIMED) advisories $(CARGO) deny check advisories

build-tests:
	@$(TIMED) build $(CARGO) test --workspace --locked --no-run
	@$(CARGO) build --quiet --workspace --bins --locked

# Not through `cargo run`: what that adds to the environment would make the inner cargo build everything anew.
unit: build-tests ## every test, beside private database servers
	@$(TIMED) tests $(BUILT)/debug/with-servers scripts/run-tests

# SECONDS and SEED of the environment or the command line: make torture SECONDS=900 SEED=7. The parts run one after another, and
# each of them whatever became of those before.
torture: build-tests ## faults without end on every back end, as long as told; the suite has a few seconds of it
	@$(TIMED) torture env HOOKSAGA_TORTURE_SECONDS=$(or $(SECONDS),300) HOOKSAGA_TORTURE_SEED=$(or $(SEED),1) \
		HOOKSAGA_CUTS=$(or $(CUTS),1000000) HOOKSAGA_FAULT_STRIDE=$(or $(STRIDE),1) HOOKSAGA_MODEL=large $(BUILT)/debug/with-servers sh -c \
		'failed=; \
		 $(CARGO) test -p hooksaga-saga --locked --test main -- model::whole::large model::back_ends --nocapture --test-threads 1 || failed="$$failed model"; \
		 HOOKSAGA_SUBSCRIPTIONS=100000 $(CARGO) test -p hooksaga-sqlite -p hooksaga-postgres -p hooksaga-mysql --locked --no-fail-fast --test main conformance::plans -- --test-threads 1 || failed="$$failed plans"; \
		 $(CARGO) test -p hooksaga --locked --test whole torture -- --nocapture --test-threads 1 || failed="$$failed torture"; \
		 HOOKSAGA_HELD_SECONDS=60 $(CARGO) test -p hooksaga --locked --test whole is_held_for_long -- --test-threads 1 || failed="$$failed held"; \
		 $(CARGO) test -p hooksaga-pipeline --locked --test main faults -- --nocapture --test-threads 1 || failed="$$failed faults"; \
		 test -z "$$failed" || { echo "== failed:$$failed"; exit 1; }'

# So many seconds of load before and after each fault: make availability SECONDS=60
availability: build-tests ## nodes, primaries and copies killed and frozen in turn, under load; the suite has a short version
	@$(TIMED) tools scripts/install-test-tools --availability
	@$(TIMED) availability env HOOKSAGA_AVAILABILITY_SECONDS=$(or $(SECONDS),10) $(BUILT)/debug/with-servers \
		$(CARGO) test -p hooksaga --locked --test whole availability -- --nocapture --include-ignored --test-threads 1

dist: ## what is handed out, in dist/: a static binary, tar.gz, .deb, OCI image, checksums
	@$(TIMED) dist env CARGO=$(CARGO) scripts/dist

# Not in `test`: an optimised build takes minutes.
test-dist: dist ## tries each package by running the demo from it
	@$(TIMED) test-dist scripts/test-dist

doc:
	@$(TIMED) doc $(CARGO) doc --workspace --no-deps --locked

run: ## the server on the embedded database, for development
	$(CARGO) run --locked --release --bin hooksaga -- serve --dev
