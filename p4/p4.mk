# The P4 program: compiling it for Tofino, and running its packet vectors.
.PHONY: p4 p4-polynomial p4-splits p4-largest p4-generated p4-test

## make p4     compile the P4 program for Tofino 1 and 2, every build that has changed, and report the resources (needs bf-p4c)
p4: $(VENV)/.ready
	@$(BIN)/python p4/compile.py

## make p4-polynomial   draw new polynomials for the site, compile BUILD="NAME..." (else the builds that are there) with them, and say what to restart (needs bf-p4c)
p4-polynomial: $(VENV)/.ready
	@$(BIN)/python p4/compile.py --new-polynomials $(BUILD)

## make p4-splits   compile other splits between IPv4 and IPv6 entries, those that have changed, and report the resources (needs bf-p4c)
p4-splits: $(VENV)/.ready
	@$(BIN)/python p4/compile.py --splits

## make p4-largest   compile every build with larger and larger tables, and say which sizes fit (needs bf-p4c, and hours)
p4-largest: $(VENV)/.ready
	@$(BIN)/python p4/largest.py

## make p4-generated   renew the committed schema and hash functions after a change of the P4 program (needs bf-p4c)
p4-generated: $(VENV)/.ready
	@$(BIN)/python p4/generate.py

## make p4-test   packet vectors against every data plane that is there: softswitch, BMv2, Tofino
p4-test: setup-all
	@$(BIN)/python -m tests.p4.run
