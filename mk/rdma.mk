# Correctness over RDMA without RDMA cards: soft-RoCE in a qemu guest. Not part of CI; minutes on two cores.

RDMA_GUEST ?= build/rdma-guest

.PHONY: test-rdma

test-rdma: $(DEV)  ## nixl over soft-RoCE in a qemu guest: right bytes, and packets counted by the RDMA device
	sh tests/rdma/run.sh '$(abspath $(RDMA_GUEST))' tests/rdma/blocks.sh
