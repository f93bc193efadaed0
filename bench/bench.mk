# Benches: each target writes raw data and results under build/bench/.
# The load generator's objects, which only benches and their tests need.
BENCH_OBJECTS := $(patsubst bench/%.bpf.c,build/bench/obj/%.o,$(wildcard bench/*.bpf.c)) build/bench/obj/relay.o

.PHONY: bench-relay-table

## make bench-relay-table   the relay table's cost per packet, memory and write rate
bench-relay-table: setup-all build/bench/obj/relay_table.o build/bench/obj/relay.o
	@$(BIN)/python -m bench.relay_table

.PHONY: bench-restart
## make bench-restart   packets lost and time out of service when each process is killed under load
bench-restart: setup-all
	@$(BIN)/python bench/restart.py

KILL_SECONDS ?= 600
.PHONY: bench-kills
## make bench-kills   processes killed at random under SIP calls for ten minutes (KILL_SECONDS), every lost packet with its cause
bench-kills: setup-all
	@$(BIN)/python bench/kills.py --seconds $(KILL_SECONDS)

.PHONY: bench-bfrt
## make bench-bfrt   BF Runtime at a softswitch: rates, delays, restarts and memory by a native client
bench-bfrt: setup-all bench-client
	@$(BIN)/python -m bench.bfrt

.PHONY: bench-client
bench-client: packages-build
	@$(CARGO) build --release --locked -p shunt-bench-bfrt-client

.PHONY: bench-setup
## make bench-setup   call set-up by OpenSIPS-like load: the relay alone, and with shunt-agent in front of it (RELAY=rtpproxy|shunt-relay|rtpengine)
bench-setup: setup-all bench-setup-load
	@SHUNT_AGENT=$(CURDIR)/target/release/shunt-agent SHUNT_RELAY=$(CURDIR)/target/release/shunt-relay $(BIN)/python -m bench.setup $(if $(filter-out auto,$(RELAY)),--relay $(RELAY))

.PHONY: bench-setup-load
bench-setup-load: packages-build
	@$(CARGO) build --release --locked -p shunt-bench-setup-load -p shunt-agent -p shunt-relay

.PHONY: bench-feedback
## make bench-feedback   what a browser's feedback in 25, 100 and 250 rooms of ten costs shunt-agent
bench-feedback: setup-all bench-setup-load
	@SHUNT_AGENT=$(CURDIR)/target/release/shunt-agent $(BIN)/python -m bench.feedback

.PHONY: bench-sequence
## make bench-sequence   what rewriting sequence numbers costs under loss and reordering, judged by an oracle
bench-sequence: setup-all
	@PYTHONPATH=. $(BIN)/python -m bench.sequence

.PHONY: fuzz
FUZZ_INPUTS ?= 200000
## make fuzz   every parser of outside bytes under a coverage-guided fuzzer (FUZZ_INPUTS=10000000 for a long run)
fuzz: setup-all
	@PYTHONPATH=. $(BIN)/python -m tests.fuzz.run --inputs $(FUZZ_INPUTS)

.PHONY: bench-replication
## make bench-replication   ns a copy at 1 to 50 receivers of one packet; 131,072 meetings loaded
bench-replication: setup-all build/bench/obj/replication.o build/bench/obj/relay.o
	@$(BIN)/python -m bench.replication

.PHONY: bench-mixer
## make bench-mixer   phones of one conference that a core mixes, and the delay that mixing adds; video tiled beside separate streams and ffmpeg
bench-mixer: setup-all bench-programs
	@PYTHONPATH=. $(BIN)/python -m bench.mixer.audio; audio=$$?; PYTHONPATH=. $(BIN)/python -m bench.mixer.pictures && exit $$audio

.PHONY: bench-conference
## make bench-conference   conferences side by side: delay by hosts and under load, planes, sequence numbers, meetings by tree design (PROFILE=short|full)
bench-conference: setup-all bench-packages bench-programs
	@$(BIN)/python -m bench.conference --profile $(PROFILE)

# Programs that benches and their tests start: the allocator that agents use, the mixer's tiling, and the load generator's objects.
.PHONY: bench-programs
bench-programs: daemons $(BENCH_OBJECTS)
	@$(CARGO) build --quiet --release --locked -p shunt-conference -p shunt-tiling --example meetings --example tile

PROFILE ?= short

BENCH_CLANG := clang -O2 -g -Wall -Werror -target bpf -mcpu=v3 -Isoftswitch/bpf -I/usr/include/$(shell uname -m)-linux-gnu -c

build/bench/obj/%.o: bench/%.bpf.c $(wildcard softswitch/bpf/*.h)
	@echo "==> $< -> $@"
	@mkdir -p $(@D)
	@$(BENCH_CLANG) $< -o $@

# The relay itself, whose constants the others take over.
build/bench/obj/relay.o: softswitch/bpf/relay.bpf.c $(wildcard softswitch/bpf/*.h)
	@mkdir -p $(@D)
	@$(BENCH_CLANG) $< -o $@

# Beside what `make setup-all` installs. A peer that is missing is left out, and the report says so.
BENCH_PACKAGES := rtpengine-daemon nftables iperf3 janus

.PHONY: bench-packages
bench-packages:
	@.ci/debian-packages $(BENCH_PACKAGES) || echo "going on without what is missing"

.PHONY: bench-relay
## make bench-relay   the same streams through rtpproxy, rtpengine, nftables, Shunt and others (PROFILE=short|full)
bench-relay: setup-all bench-packages $(BENCH_OBJECTS)
	@$(BIN)/python -m bench.relay_peers --profile $(PROFILE)

.PHONY: bench-calls
## make bench-calls   real calls by SIPp with media, 30 new a second, through each relay: CPU over time, loss (PROFILE=short|full)
bench-calls: setup-all bench-packages
	@$(BIN)/python -m bench.calls --profile $(PROFILE)

.PHONY: bench-packet
## make bench-packet   ns per packet by entries, size and headers, packets/s of a core, entries/s (PROFILE=short|full)
bench-packet: setup-all $(BENCH_OBJECTS)
	@$(BIN)/python -m bench.packet --profile $(PROFILE)

.PHONY: bench-control
## make bench-control   calls per second and delay of commands through the agent, time to offload, memory (PROFILE=short|full)
bench-control: setup-all bench-packages
	@$(BIN)/python -m bench.control --profile $(PROFILE)

.PHONY: bench
## make bench   all of them, one report; an interrupted run goes on (PROFILE=short: under 10 minutes; PROFILE=full: two hours)
bench: setup-all bench-packages bench-client bench-programs bench-setup-load
	@$(BIN)/python -m bench.all --profile $(PROFILE)

.PHONY: bench-edge
## make bench-edge   ns of processor time for a copy to a browser, its delay, Janus beside it (needs the package janus for that)
bench-edge: setup-all
	@$(CARGO) build --release --locked -p shunt-bench-edge-load
	@$(BIN)/python -m bench.edge

.PHONY: bench-browsers
## make bench-browsers   three browsers in a room: packets by type and who handles them, a narrow link, loss, delay of a packet
bench-browsers: setup-all
	@$(BIN)/python -m bench.browsers

.PHONY: demo-picture
## make demo-picture   run the demo and draw its live table and its checks as docs/img/demo.svg
demo-picture: setup
	@$(BIN)/python -m bench.demo_picture docs/img/demo.svg --sip-server $(SIP_SERVER) --relay $(RELAY)
