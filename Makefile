# Set-up, demo, tests and benches. `make help` lists the targets.
PYTHON ?= /usr/bin/python3.11
VENV := build/venv
BIN := $(VENV)/bin
PB := agent/shunt/bfrt/_pb/bfruntime_pb2.py
BPF_SOURCES := $(wildcard softswitch/shunt_softswitch/bpf/*.bpf.c)
BPF_OBJECTS := $(patsubst softswitch/shunt_softswitch/bpf/%.bpf.c,softswitch/shunt_softswitch/obj/%.o,$(BPF_SOURCES))
DEBIAN_PACKAGES := python3-venv clang llvm libbpf-dev libbpf1 linux-libc-dev bpftool iproute2 nftables ethtool kamailio sip-tester tcpdump redis-server openssl
SIP_SERVER ?= auto
RELAY ?= auto

.PHONY: help setup build demo test clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   real SIP calls through a NAT, their media carried by the kernel (SIP_SERVER=opensips|kamailio RELAY=rtpproxy|builtin)"
	@echo "make test   unit, property, data-plane and end-to-end tests"
	@echo "make setup  install what both need (Debian packages, Python environment) and build"
	@sed -n 's/^## //p' $(filter %.mk,$(MAKEFILE_LIST))

setup: build/.debian $(VENV)/.ready build

build/.debian: Makefile
	@mkdir -p build
	@.ci/debian-packages $(DEBIAN_PACKAGES)
	@touch $@

$(VENV)/.ready: pyproject.toml requirements.lock | build/.debian
	@echo "==> Python environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

build: $(PB) $(BPF_OBJECTS)

$(PB): agent/shunt/bfrt/bfruntime.proto | $(VENV)/.ready
	@echo "==> protocol definitions"
	@mkdir -p $(@D) && touch $(@D)/__init__.py
	@cd agent/shunt/bfrt && $(abspath $(BIN))/python -m grpc_tools.protoc -I. -I$$($(abspath $(BIN))/python -c "import google.rpc.status_pb2 as m, pathlib; print(pathlib.Path(m.__file__).parents[2])") --python_out=_pb --grpc_python_out=_pb bfruntime.proto
	@sed -i 's/^import bfruntime_pb2/from . import bfruntime_pb2/' $(@D)/bfruntime_pb2_grpc.py

softswitch/shunt_softswitch/obj/%.o: softswitch/shunt_softswitch/bpf/%.bpf.c $(wildcard softswitch/shunt_softswitch/bpf/*.h)
	@echo "==> $< -> $@"
	@mkdir -p $(@D)
	@clang -O2 -g -Wall -Werror -target bpf -mcpu=v3 -I/usr/include/$(shell uname -m)-linux-gnu -c $< -o $@

demo: setup
	@$(BIN)/python -m tests.lab.demo --sip-server $(SIP_SERVER) --relay $(RELAY)

test: setup
	@$(BIN)/python -m pytest

# Each part keeps its own targets next to its code.
include $(wildcard p4/p4.mk bench/bench.mk packaging/packaging.mk)

clean:
	rm -rf build agent/shunt/bfrt/_pb softswitch/shunt_softswitch/obj
