# Set-up, demo, tests and benches. `make help` lists the targets.
PYTHON ?= /usr/bin/python3
VENV := build/venv
BIN := $(VENV)/bin
PB := tests/tools/bfrt/_pb/bfruntime_pb2.py
# A package with ? is done without where the distribution has none; what needs it says so.
DEBIAN_PACKAGES := python3-venv clang llvm libbpf-dev libbpf1 linux-libc-dev bpftool? iproute2 nftables ethtool kamailio rtpengine-daemon? sip-tester tcpdump redis-server openssl curl groff-base ffmpeg? kvazaar? \
  kamailio-websocket-modules? kamailio-tls-modules? chromium? chromium-driver? firefox-esr? \
  gstreamer1.0-plugins-base? gstreamer1.0-plugins-good? gstreamer1.0-plugins-bad? gstreamer1.0-nice? python3-gi? gir1.2-gst-plugins-base-1.0? gir1.2-gst-plugins-bad-1.0?
# For the Rust workspace. The compiler is the one on PATH when it is new enough (.ci/rust), else Debian's.
RUST_PACKAGES := gcc g++ libc6-dev make cmake pkg-config libelf-dev zlib1g-dev protobuf-compiler libprotobuf-dev libsqlite3-dev libssl-dev
CARGO := .ci/rust cargo
SIP_SERVER ?= auto
RELAY ?= auto
SECONDS ?= 30
# Of `make test`, each in a network of its own; what takes all the processors it gets, calls and browsers, runs alone after them.
WORKERS ?= 2
BUSY_TESTS := tests/attacks tests/bench tests/e2e tests/edge tests/fuzz tests/ha tests/ng tests/rooms

# What `make test-quick` runs: no root, no daemon, no SIP server.
QUICK_TESTS := tests/conference tests/observe tests/operator/test_api.py tests/operator/test_config.py tests/operator_conferences tests/rooms tests/packaging/test_documents.py tests/p4/test_generated.py
QUICK_CRATES := shunt-net shunt-rtp shunt-rtpproxy shunt-ng shunt-hep shunt-latch shunt-calls shunt-conference

.PHONY: help setup build demo demo-browsers test test-quick test-quick-python test-quick-rust check docs daemons check-rust check-arm64 clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   real SIP calls through a NAT, their media carried by the kernel (SIP_SERVER=opensips|kamailio RELAY=rtpproxy|rtpengine|builtin)"
	@echo "make demo-browsers  three browsers and a SIP phone in one room, every frame read (SECONDS=30)"
	@echo "make test   unit, property, data-plane and end-to-end tests"
	@echo "make test-quick  those of them that take no root and no daemon, in two minutes"
	@echo "make setup  install what both need (Debian packages, Python environment) and build"
	@echo "make check  format, lints, types, spelling and links"
	@echo "make docs   the documents as a site (build/site)"
	@echo "make daemons     build the daemons in Rust (target/release)"
	@echo "make check-arm64 that the daemons can be built for aarch64"
	@echo "make check-rust  format, lints, licences and tests of the Rust workspace"
	@sed -n 's/^## //p' $(filter %.mk,$(MAKEFILE_LIST))

setup: build/.debian $(VENV)/.ready build build/.sip-agents

build/.debian: Makefile
	@mkdir -p build
	@.ci/debian-packages $(DEBIAN_PACKAGES)
	@touch $@

build/.python: Makefile
	@mkdir -p build
	@.ci/debian-packages python3-venv
	@touch $@

$(VENV)/.ready: pyproject.toml requirements.lock | build/.python
	@echo "==> Python environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

build/.sip-agents: .ci/sip-agents tests/rooms/sip/package.json tests/rooms/sip/package-lock.json
	@.ci/sip-agents
	@touch $@

build: $(PB) daemons

$(PB): crates/bfrt/proto/bfruntime.proto | $(VENV)/.ready
	@echo "==> protocol definitions"
	@mkdir -p $(@D) && touch $(@D)/__init__.py
	@$(BIN)/python -m grpc_tools.protoc -I$(<D) --python_out=$(@D) --grpc_python_out=$(@D) $(<F)
	@sed -i 's/^import bfruntime_pb2/from . import bfruntime_pb2/' $(@D)/bfruntime_pb2_grpc.py

build/.rust: Makefile .ci/rust
	@mkdir -p build
	@.ci/debian-packages $(RUST_PACKAGES)
	@.ci/rust --install
	@touch $@

# All crates of Cargo.lock for this machine, also those that only tests use: building and testing need no network after it.
build/.crates: Cargo.lock build/.rust
	@echo "==> crates"
	@$(CARGO) fetch --quiet --locked --target $$(.ci/rust rustc -vV | sed -n 's/^host: //p')
	@touch $@

daemons: build/.rust build/.crates build/.debian
	@echo "==> daemons in Rust"
	@$(CARGO) build --release --locked -p shunt-softswitch -p shunt-agent -p shunt-relay -p shunt-edge -p shunt-mixer

# The data-plane tests among them need root, as `make test` does.
check-rust: build/.rust build/.debian daemons
	@.ci/licences $(CARGO)
	@echo "==> cargo fmt, clippy, test"
	@$(CARGO) fmt --all --check
	@if $(CARGO) clippy --version >/dev/null 2>&1; then $(CARGO) clippy --workspace --all-targets --locked -- -D warnings; \
	  else echo "skipped: cargo clippy (Debian's rustc-web has none)"; fi
	@$(CARGO) test --workspace --locked
	@$(CARGO) test --locked -p shunt-plane --test softswitch -- --ignored --skip how_long

# Debian's packages for arm64 come with it; not part of CI, for it takes several minutes.
check-arm64: build/.rust build/.debian
	@.ci/arm64 --target-dir target/arm64 -p shunt-softswitch -p shunt-agent -p shunt-relay -p shunt-edge -p shunt-mixer

demo: setup
	@$(BIN)/python -m tests.lab.demo --sip-server $(SIP_SERVER) --relay $(RELAY)

demo-browsers: setup
	@$(BIN)/python -m tests.rooms.demo --seconds $(SECONDS)

test: setup bench-programs
	@result=0; \
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(addprefix --ignore=,$(BUSY_TESTS)) || result=$$?; \
	$(BIN)/python -m pytest $(BUSY_TESTS) || result=$$?; \
	exit $$result

test-quick:
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line test-quick-python test-quick-rust

test-quick-python: $(VENV)/.ready $(PB)
	@$(BIN)/python -m pytest -m "not netns and not e2e" $(QUICK_TESTS)

test-quick-rust:
	@if $(CARGO) --version >/dev/null 2>&1; then $(CARGO) test --quiet --locked --profile quick $(addprefix -p ,$(QUICK_CRATES)); \
	  else echo "skipped: the Rust crates $(QUICK_CRATES) (no cargo 1.89 or newer; make setup installs one)"; fi

check: build/.rust $(VENV)/.ready
	@.ci/debian-packages shellcheck
	@.ci/check $(BIN)

docs: $(VENV)/.ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Each part keeps its own targets next to its code.
include $(wildcard p4/p4.mk bench/bench.mk packaging/packaging.mk)

clean:
	rm -rf build target $(dir $(PB))
