# Benches: each target writes raw data and results under build/bench/.
.PHONY: bench-relay-table

## make bench-relay-table   the relay table's cost per packet, memory and write rate
bench-relay-table: setup
	@$(BIN)/python bench/relay_table.py

.PHONY: bench-restart
## make bench-restart   packets lost and time out of service when each process is killed under load
bench-restart: setup
	@$(BIN)/python bench/restart.py
	@$(BIN)/python bench/restart_table.py

.PHONY: bench-bfrt
## make bench-bfrt   BF Runtime writes, reads and reconciling against a softswitch
bench-bfrt: setup
	@$(BIN)/python -m bench.bfrt

.PHONY: fuzz
FUZZ_INPUTS ?= 200000
## make fuzz   every parser of outside bytes under a coverage-guided fuzzer (FUZZ_INPUTS=10000000 for a long run)
fuzz: setup
	@PYTHONPATH=. $(BIN)/python -m tests.fuzz.run --inputs $(FUZZ_INPUTS)
