# Set-up, demo, tests and benches. `make help` lists the targets.
PYTHON ?= /usr/bin/python3
VENV := build/venv
BIN := $(VENV)/bin
PB := tests/tools/bfrt/_pb/bfruntime_pb2.py
# Debian packages by what needs them. A package with ? is done without where the distribution has none; what needs it says so.
# The compiler of Rust is the one on PATH when it is new enough (.ci/rust), else Debian's.
BUILD_PACKAGES := python3-venv gcc libc6-dev make pkg-config clang libbpf-dev linux-libc-dev libelf-dev zlib1g-dev protobuf-compiler libprotobuf-dev libsqlite3-dev
# Edge and mixer compile OpenSSL's bindings, AWS-LC and Opus.
MEDIA_PACKAGES := g++ cmake libssl-dev
DEMO_PACKAGES := iproute2 nftables ethtool kamailio sip-tester tcpdump
TEST_PACKAGES := llvm bpftool? prometheus? rtpengine-daemon? redis-server openssl curl groff-base iperf3 tshark ffmpeg? kvazaar? \
  kamailio-websocket-modules? kamailio-tls-modules? chromium? chromium-driver? firefox-esr? \
  gstreamer1.0-plugins-base? gstreamer1.0-plugins-good? gstreamer1.0-plugins-bad? gstreamer1.0-nice? python3-gi? gir1.2-gst-plugins-base-1.0? gir1.2-gst-plugins-bad-1.0?
CARGO := .ci/rust cargo
STAGE := .ci/stage
SIP_SERVER ?= auto
RELAY ?= auto
SECONDS ?= 30
# Tests mostly wait for daemons, calls and browsers: more workers than processors. Each has networks and mounts of its own.
WORKERS ?= 4
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup

DEMO_DAEMONS := -p shunt-softswitch -p shunt-agent -p shunt-relay
DAEMONS := $(DEMO_DAEMONS) -p shunt-edge -p shunt-mixer

# `make test-quick`: no root, no daemon, no SIP server.
QUICK_TESTS := tests/conference tests/observe tests/operator/test_api.py tests/operator/test_config.py tests/operator_conferences tests/rooms tests/packaging/test_documents.py tests/p4/test_generated.py
QUICK_CRATES := shunt-net shunt-rtp shunt-rtpproxy shunt-ng shunt-hep shunt-latch shunt-calls shunt-admin-model shunt-conference

# `make test-part PART=…`: the part's crates and its black-box tests.
PARTS := agent softswitch relay edge mixer operator p4 conferences calls networks
CRATES_agent := agent control journal standby plane bfrt-client admin notify
TESTS_agent := agent_daemon admin ha
CRATES_softswitch := softswitch abi xdp relay-table replication nexthop bfrt
TESTS_softswitch := softswitch dataplane replication bfrt
CRATES_relay := relay udp rtp rtpproxy
TESTS_relay := relay_daemon
CRATES_edge := edge edge-media srtp
TESTS_edge := edge rooms
CRATES_mixer := mixer mix tiling
TESTS_mixer := mixer_daemon tiling
TESTS_operator := alerts operator operator_daemon operator_conferences observe doctor packaging
TESTS_p4 := p4 bfrt/test_schema.py bfrt/test_bfshell.py
CRATES_conferences := conference
TESTS_conferences := conference conference_control agent_conference operator_conferences
CRATES_calls := calls latch net rtp rtpproxy ng hep
TESTS_calls := e2e ng attacks
TESTS_networks := networks
ENVIRONMENT_networks := SHUNT_ALL=1

.PHONY: help setup setup-all packages packages-all build demo demo-browsers test test-all test-quick test-quick-python test-quick-rust test-part test-crates fuzz-mutations \
  packages-build check docs daemons daemons-demo check-rust check-arm64 clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   real SIP calls through a NAT, their media carried by the kernel (SIP_SERVER=opensips|kamailio RELAY=rtpproxy|rtpengine|builtin)"
	@echo "make test   the tests of every part: crates, daemons, calls through a SIP server, a conference, a browser room"
	@echo "make test-all    what make test leaves out: whole matrices, long scenes, kills, fuzz mutations, packages"
	@echo "make test-part PART=$(shell echo $(PARTS) | tr ' ' '|')   one part's crates and tests"
	@echo "make test-quick  tests that need no root and no daemon"
	@echo "make demo-browsers  three browsers and a SIP phone in one room, every frame read (SECONDS=30)"
	@echo "make setup  install and build what the demo needs; make setup-all: what the tests need too"
	@echo "make check  format, lints, types, spelling, links and sentences"
	@echo "make check-rust  format, lints and licences of the Rust workspace"
	@echo "make docs   the documents as a site (build/site)"
	@echo "make daemons     build all five daemons (target/release)"
	@echo "make check-arm64 check that the daemons can be built for aarch64"
	@sed -n 's/^## //p' $(filter %.mk,$(MAKEFILE_LIST))

setup: packages $(VENV)/.run daemons-demo

setup-all: packages-all $(VENV)/.ready $(PB) build/.sip-agents build

packages:
	@$(STAGE) --quiet "Debian packages" .ci/debian-packages $(BUILD_PACKAGES) $(DEMO_PACKAGES) $(if $(filter rtpengine,$(RELAY)),rtpengine-daemon)
	@$(STAGE) --quiet "Rust compiler" .ci/rust --install

packages-all:
	@$(STAGE) --quiet "Debian packages" .ci/debian-packages $(BUILD_PACKAGES) $(MEDIA_PACKAGES) $(DEMO_PACKAGES) $(TEST_PACKAGES)
	@$(STAGE) --quiet "Rust compiler" .ci/rust --install

packages-build:
	@$(STAGE) --quiet "Debian packages" .ci/debian-packages $(BUILD_PACKAGES) $(MEDIA_PACKAGES)
	@$(STAGE) --quiet "Rust compiler" .ci/rust --install

# The package with what it needs at run time.
$(VENV)/.package: pyproject.toml requirements.lock
	@$(STAGE) --quiet "Python package" .ci/python-packages $(PYTHON) $(VENV)
	@touch $@

# With the demo's own library.
$(VENV)/.run: pyproject.toml requirements.lock
	@$(STAGE) --quiet "Python packages of the demo" .ci/python-packages $(PYTHON) $(VENV) demo
	@touch $(VENV)/.package $@

# With the tools of tests, checks and documents.
$(VENV)/.ready: pyproject.toml requirements.lock | $(VENV)/.run
	@$(STAGE) --quiet "Python packages of the tests" $(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@touch $@

build/.sip-agents: .ci/sip-agents tests/rooms/sip/package.json tests/rooms/sip/package-lock.json
	@$(STAGE) "SIP user agents for browsers" .ci/sip-agents
	@touch $@

build: daemons bench-programs

$(PB): crates/plane/bfrt/proto/bfruntime.proto | $(VENV)/.ready
	@mkdir -p $(@D) && touch $(@D)/__init__.py
	@$(BIN)/python -m grpc_tools.protoc -I$(<D) --python_out=$(@D) --grpc_python_out=$(@D) $(<F)
	@sed -i 's/^import bfruntime_pb2/from . import bfruntime_pb2/' $(@D)/bfruntime_pb2_grpc.py

daemons-demo: packages
	@$(STAGE) "softswitch, agent and relay" $(CARGO) build --release --locked $(DEMO_DAEMONS)

daemons: packages-build
	@$(STAGE) "all daemons" $(CARGO) build --release --locked $(DAEMONS)

check-rust: packages-build
	@$(STAGE) "licences" .ci/licences $(CARGO)
	@$(STAGE) "rustfmt" $(CARGO) fmt --all --check
	@if $(CARGO) clippy --version >/dev/null 2>&1; then $(STAGE) "clippy" $(CARGO) clippy --workspace --all-targets --locked -- -D warnings; \
	  else echo "skipped: cargo clippy (Debian's rustc-web has none)"; fi

# Debian's packages for arm64 come with it; not part of CI, for it takes several minutes.
check-arm64: packages-build
	@.ci/arm64 --target-dir target/arm64 $(DAEMONS)

demo: setup
	@$(STAGE) "calls" $(BIN)/python -m tests.lab.demo --sip-server $(SIP_SERVER) --relay $(RELAY)

demo-browsers: setup-all
	@$(BIN)/python -m tests.rooms.demo --seconds $(SECONDS)

test: setup-all
	@result=0; \
	$(MAKE) --no-print-directory test-crates || result=$$?; \
	$(STAGE) "black-box tests" $(PYTEST) || result=$$?; \
	exit $$result

# The data-plane tests among them need root.
test-crates:
	@$(STAGE) "tests of the crates" $(CARGO) test --quiet --workspace --locked
	@$(STAGE) "agent's writer beside a softswitch" $(CARGO) test --quiet --locked -p shunt-plane --test softswitch -- --ignored --skip how_long

test-all: setup-all
	@result=0; \
	SHUNT_ALL=1 $(STAGE) "slow tests" $(PYTEST) || result=$$?; \
	$(MAKE) --no-print-directory deb-test oci-test || result=$$?; \
	exit $$result

test-part: setup-all
	@case " $(PARTS) " in *" $(PART) "*) ;; *) echo "PART is one of: $(PARTS)" >&2; exit 2;; esac
	@result=0; \
	if [ -n "$(CRATES_$(PART))" ]; then $(STAGE) "crates: $(PART)" $(CARGO) test --quiet --locked $(patsubst %,-p shunt-%,$(CRATES_$(PART))) || result=$$?; fi; \
	$(ENVIRONMENT_$(PART)) $(STAGE) "black-box tests: $(PART)" $(PYTEST) $(addprefix tests/,$(TESTS_$(PART))) || result=$$?; \
	exit $$result

test-quick:
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line test-quick-python test-quick-rust

test-quick-python: $(VENV)/.ready $(PB)
	@$(BIN)/python -m pytest --quiet -m "not netns and not e2e and not slow" $(QUICK_TESTS)

test-quick-rust:
	@if $(CARGO) --version >/dev/null 2>&1; then $(CARGO) test --quiet --locked --profile quick $(addprefix -p ,$(QUICK_CRATES)); \
	  else echo "skipped: the Rust crates $(QUICK_CRATES) (no cargo 1.89 or newer; make setup installs one)"; fi

check: packages-build $(VENV)/.ready
	@.ci/debian-packages shellcheck
	@$(STAGE) "format, lints, types, links" .ci/check $(BIN)

docs: $(VENV)/.ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Each part keeps its own targets next to its code.
include $(wildcard p4/p4.mk bench/bench.mk packaging/packaging.mk)

clean:
	rm -rf build target $(dir $(PB))
