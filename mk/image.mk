# The container images, built and run here: needs root, podman, runc and debootstrap.

.PHONY: test-image

test-image: $(DEV)  ## build the images on a local base, run them read-only and without root, use them: minutes
	$(BIN)/python -m pytest tests/image --timeout 1800 $(ARGS)
