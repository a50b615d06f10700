# The Helm chart.

.PHONY: chart-files test-helm

chart-files: $(DEV)  ## what of the chart follows from other files: dashboard, alerts, settings in its schema
	$(BIN)/python -m tools.chart_files

test-helm: $(DEV)  ## the chart: rendered by Helm 4 and 3, checked, and run as processes
	$(BIN)/python -m tests.suites helm
