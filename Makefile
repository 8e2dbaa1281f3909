# Bivouac. `make` or `make help` lists the targets.
GO      ?= go
BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

# What is compiled names no folder, so that every clone uses what another one compiled.
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

# What has no race detector is compiled as the program is, without cgo: one compilation serves all.
PURE := CGO_ENABLED=0

# The linter is pinned, and built once into the cache.
LINT_VERSION := v2.13.2
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/bivouac
LINT := $(CACHE)/bin/golangci-lint-$(LINT_VERSION)/golangci-lint

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: page ## build bin/bivouac, bin/sandbox-agent and, where npm is there, the web page in bin/page
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/bivouac ./cmd/bivouac
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/sandbox-agent ./cmd/sandbox-agent

.PHONY: run
run: build ## three nodes here, nothing else needed (RUN_FLAGS="--http-port 9000")
	@exec $(BIN)/bivouac dev $(RUN_FLAGS)

.PHONY: stack
stack: build ## the real stack here: Nomad, Vault, three nodes, HAProxy
	@exec $(GO) run ./deploy/local/stack up

.PHONY: stack-down
stack-down: ## stop what `make stack` started
	@exec $(GO) run ./deploy/local/stack down

.PHONY: tools
tools: ## build the pinned Nomad and Vault into the cache, if none is there
	@exec $(GO) run ./deploy/local/stack tools

.PHONY: agents
agents: ## install the coding agents that the tests run (OpenCode, Codex) into the cache, if npm is there
	@ops/agents/install.sh ops/agents $(CACHE)/agents/tested

.PHONY: page
page: ## assemble the web page from pinned npm packages in the cache, and link it to bin/page, if npm is there
	@ops/agents/install.sh ops/page $(CACHE)/page/packages
	@if [ -e $(CACHE)/page/packages/.installed ]; then $(GO) run ./ops/page -packages $(CACHE)/page/packages \
	  -out $(CACHE)/page -link $(BIN)/page; else echo "the web page is not made: bivouac serves the API without it" >&2; fi

.PHONY: clients
clients: ## install the published client whose methods the drills call into the cache, if npm is there
	@ops/agents/install.sh ops/e2e/clients $(CACHE)/clients

.PHONY: grafana-schema
grafana-schema: ## install Grafana's types of dashboards and TypeScript into the cache, if npm is there
	@ops/agents/install.sh ops/watch/schema $(CACHE)/grafana

.PHONY: agents-all
agents-all: agents ## install the agents of the other presets too (Claude Code, Gemini, Qwen), and run the tests that need agents
	@ops/agents/install.sh ops/agents/all $(CACHE)/agents/all
	$(GO) test -race -count=1 -v -run 'TestReal_' ./cmd/internal/sandboxagent/acp

.PHONY: sandbox-image
sandbox-image: build ## the image of sandboxes: Debian, git, Python, Node, build tools, the agents (root, docker, debootstrap, npm; TAG=name:tag)
	@deploy/image/build.sh $(BIN)/sandbox-agent $(TAG)

.PHONY: check
check: $(LINT) ## formatting, vet, golangci-lint, and the project's rules (ops/check)
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	  if [ -n "$$unformatted" ]; then echo "not formatted (run gofmt -w):"; echo "$$unformatted"; exit 1; fi
	$(PURE) $(GO) vet ./...
	$(GO) vet -C ops/bench/peers ./...
	$(GO) vet -C deploy/release ./...
	$(PURE) $(GO) test -count=1 ./ops/check
	@$(PURE) $(GO) run ./ops/bench/results -note
	$(PURE) $(LINT) run --max-same-issues 0
	cd ops/bench/peers && $(LINT) run --config ../../../.golangci.yml --enable-only funlen,gochecknoinits,interfacebloat

$(LINT):
	@echo "building golangci-lint $(LINT_VERSION), once"
	GOBIN=$(dir $@) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

# The tests and the drills run the programs that build made, instead of linking them again.
tests tests-early e2e drills: export BIVOUAC_TEST_PROGRAMS := $(CURDIR)/$(BIN)

# A process with the race detector sleeps a second when it ends, to see what still runs then. Here it
# is 10 ms: the tests end hundreds of processes. `make large` and `make e2e RACE=1` keep the second.
tests tests-early: export GORACE := atexit_sleep_ms=10 $(GORACE)

.PHONY: test
test: check tests module-tests ## check, then all tests but the drills

# The packages that take longest begin first. They mostly wait, and would run alone at the end.
LONGEST := ./cluster ./scheduler/nomad ./cmd/bivouac ./httpapi ./secrets ./cmd/internal/sandboxagent/agentserver \
  ./deploy/local ./scheduler/starttask ./cluster/peernet ./ops/watch ./scheduler/process

# These packages depend on no timer of Raft's or Nomad's. .ci/run tests them beside the drills, with
# the CPU that the drills leave, and `make tests` finds the results in go's cache.
EARLY := ./fsm/... ./scheduler ./scheduler/archive ./scheduler/copies ./cluster/raftstore ./ops/e2e/lincheck \
  $(addprefix ./cmd/internal/sandboxagent/,acp event hooks mcp native skills tools/...)

RACED_TESTS := -race -timeout=30m

.PHONY: tests
tests: tools agents grafana-schema build ## all tests but the drills with the race detector, the real Nomad and Vault included
	@# check has run ops/check; ops/e2e is e2e's. Packages wait: two more than there are cores at a time.
	@$(GO) run ./ops/progress $(RACED_TESTS) -p=$$(( $$(nproc) + 2 )) $$($(GO) list $(LONGEST)) $$($(GO) list ./... | \
	  grep -v -x -e '.*/ops/e2e' -e '.*/ops/check' $$($(GO) list -f '-e {{.ImportPath}}' $(LONGEST)))
	@# hashicorp/raft reads a peer's id unlocked while its address changes: two run without the detector.
	@# The largest commands cost it seconds each.
	$(PURE) $(GO) test -run 'TestReal_AllNodesMove|TestReal_Members_Exchange|TestReal_TheLargestCommands' ./cluster
	@# The race detector allocates: budgets of allocations, and what counts memory, are without it, too.
	$(PURE) $(GO) test -count=1 -run '^TestBudget$$|^TestState_HeapIsWhatIsCounted$$' $$(ls */budget_test.go */*/budget_test.go | xargs -n1 dirname | sed 's#^#./#')

.PHONY: tests-early
tests-early: tools agents build ## those of make tests that need little CPU at a time
	@$(GO) run ./ops/progress $(RACED_TESTS) -p=2 $$($(GO) list $(EARLY))

.PHONY: module-tests
module-tests: ## the tests of the modules beside ours: the bench against peers (without them), what makes the packages
	$(GO) test -C ops/bench/peers ./...
	$(GO) test -C deploy/release ./...

.PHONY: e2e
e2e: tools clients build ## the drills (ops/e2e) on the real stack in their short form, side by side (DRILLS='TestLimit|TestStorm' for some, RACE=1 with the race detector in all)
	$(PURE) $(GO) run ./ops/drills $(if $(DRILLS),-run '$(DRILLS)') $(if $(RACE),-race) -raced '$(RACED)' $(if $(RECORD),-record ops/drills/times.txt)

# The drills whose nodes have the race detector in make e2e: together they use every part of a node.
RACED := TestFirstSlice|TestWarmPool

# What has a larger form than the one that make test runs: more random histories, bigger crowds.
# TestOpen_DamagedFiles (cluster/raftstore) has one too, of tens of minutes, which no target runs.
LARGE := TestCluster_Chaos_|TestCluster_Forms_WhateverTheStartOrder|TestNode_Read_NeverStale|TestReal_KillNine_|TestReal_AFlood|TestPeerPort_PeersGetIn|TestPolicy_HungServers|TestProbes_.*Starve|TestTerminal_LargeOutput|TestShorten_ManySteps

.PHONY: large
large: ## the large forms of tests with random histories or crowds, of which make test runs small ones
	BIVOUAC_DRILL=long $(GO) test -race -timeout 30m -p 1 -run '$(LARGE)' ./cluster ./cluster/peernet ./scheduler ./cmd/internal/sandboxagent/tools ./cmd/internal/sandboxagent/native

.PHONY: suite
suite: agents ## the twenty tasks with a model's mistakes for each agent, and a step's overhead up to 10,000 events
	BIVOUAC_DRILL=long $(GO) test -count=1 -v -timeout 3h -run 'TestSuite' ./cmd/internal/sandboxagent/agentserver

.PHONY: golden
golden: ## rewrite golden files; read the diff as you read code
	$(GO) test ./fsm -run TestScripts -rewrite
	$(GO) test ./httpapi ./scheduler/nomad -update
	$(GO) test ./cmd/bivouac -run TestMetrics -update
	$(GO) run ./ops/watch/generate

.PHONY: release
release: page ## archives, packages (deb, rpm) and OCI layouts for amd64 and arm64, checksums, modules and licences, in dist (STALE_RESULTS="why" with results of another commit)
	$(GO) run -C deploy/release . -root $(CURDIR) -out $(CURDIR)/dist $(if $(STALE_RESULTS),-stale-results "$(STALE_RESULTS)")

.PHONY: clean
clean: ## remove what the build made
	rm -rf $(BIN) dist

FUZZTIME ?= 1m

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME each (1m), with a verdict for each
	$(GO) run ./ops/fuzz -time $(FUZZTIME) -parallel $$(nproc)

VERSITYGW := v1.8.0

GATEWAY := $(CACHE)/versitygw-$(VERSITYGW)/versitygw

.PHONY: s3
s3: $(GATEWAY) ## the store of copies on an S3 server (versitygw, built into the cache) with faults
	BIVOUAC_S3_GATEWAY=$(GATEWAY) $(GO) test -race -count=1 -run '^TestS3_' ./scheduler/copies

$(GATEWAY):
	@echo "building versitygw $(VERSITYGW), once"
	GOFLAGS= GOBIN=$(dir $@) $(GO) install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW)

.PHONY: drills
drills: tools build ## the long drills one after the other, each with a verdict (DRILLS='TestLimit|TestStorm' for some)
	BIVOUAC_DRILL=long $(GO) run ./ops/drills -side 1 -timeout 2h $(if $(DRILLS),-run '$(DRILLS)')

.PHONY: nightly
nightly: tools ## the long and large forms, each with its time; one that fails keeps none from running
	@.ci/nightly

.PHONY: pictures
pictures: build ## the README's pictures of the web page, into ops/page/pictures
	BIVOUAC_TEST_PROGRAMS=$(CURDIR)/$(BIN) BIVOUAC_PICTURES=$(CURDIR)/ops/page/pictures $(GO) test -count=1 -run 'TestPage_AnswersAPerson$$' ./ops/e2e

.PHONY: nemesis
nemesis: tools ## linearizability and exactly once under faults, for DURATION=1h (SEED=n repeats a schedule, KINDS=empty-disk,bounce has some faults only, NODES=5 one cluster)
	BIVOUAC_DRILL_LINEAR=$(or $(DURATION),1h) BIVOUAC_DRILL_SEED=$(SEED) BIVOUAC_DRILL_KINDS=$(KINDS) BIVOUAC_DRILL_NODES=$(NODES) $(GO) test -count=1 -v -timeout 24h -run 'TestLinearizable$$' ./ops/e2e

.PHONY: soak
soak: ## keep three nodes at 70 % of their maximum, or at SOAK_RATE=50 requests a second, with the data of SOAK_USERS=5000 (DURATION=1h SOAK_STARVE=4 SOAK_OUT=folder for samples and logs)
	BIVOUAC_SOAK=$(or $(DURATION),1h) BIVOUAC_SOAK_STARVE=$(SOAK_STARVE) BIVOUAC_SOAK_RATE=$(SOAK_RATE) BIVOUAC_SOAK_USERS=$(SOAK_USERS) BIVOUAC_SOAK_OUT=$(abspath $(SOAK_OUT)) \
	  $(GO) test -count=1 -v -timeout 0 -run 'TestLoad$$' ./ops/e2e

.PHONY: vuln
vuln: ## known vulnerabilities in what the programs call; says so where the database (vuln.go.dev) can't be reached
	@out=$$($(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./... 2>&1); code=$$?; echo "$$out"; \
	  if [ $$code -ne 0 ] && echo "$$out" | grep -qE 'no such host|dial tcp|403 Forbidden|connection refused'; then \
	    echo "NOT CHECKED: the vulnerability database can't be reached from here"; exit 0; fi; exit $$code

.PHONY: bench
bench: bench-peers tools ## measure, beside etcd, rqlite and raft alone (bench-peers) and Nomad alone (BENCH_ROUNDS=20 BENCH_SANDBOXES=1000)
	BIVOUAC_BENCH=1 BIVOUAC_BENCH_ROUNDS=$(BENCH_ROUNDS) BIVOUAC_BENCH_SANDBOXES=$(BENCH_SANDBOXES) $(GO) test -count=1 -v -timeout 60m ./ops/bench
	BIVOUAC_BENCH=1 $(GO) test -count=1 -v -timeout 60m -run TestCost ./scheduler

.PHONY: bench-guard
bench-guard: ## CPU a request beside that of the commit in ops/bench/BASE (or BASE=COMMIT), in five minutes; fails above 1.15 times it
	@$(GO) run -C ops/bench/peers . guard $(BASE)

.PHONY: bench-peers
bench-peers: ## only the rows beside etcd, rqlite and raft alone, into ops/bench/RESULTS.md (ROWS=write,stale; QUICK=1 only tries)
	$(GO) run -C ops/bench/peers . $(if $(ROWS),-rows $(ROWS)) $(if $(QUICK),-quick,-out ../peers.jsonl)
	$(if $(QUICK),,$(GO) run -C ops/bench/peers . -out ../peers.jsonl -report ../RESULTS.md)
