# Histories of a cell under load and random faults, each checked call by call. Needs root (network namespaces) and etcd.

SOAK_SEEDS ?= 20
SOAK_FIRST ?= 1
SOAK_FAULTS ?= 3

.PHONY: soak

soak: $(DEV)  ## about a minute a seed: SOAK_SEEDS cells under load and random faults, every call checked
	$(BIN)/python -m tests.soak --seeds $(SOAK_SEEDS) --first $(SOAK_FIRST) --faults $(SOAK_FAULTS) \
		--out bench/results/soak.txt $(ARGS)
