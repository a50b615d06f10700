# The Helm chart.

.PHONY: chart-schema test-helm

chart-schema: $(DEV)  ## the settings of a node, in the schema of the chart's values
	$(BIN)/python -m tools.chart_schema

test-helm: $(DEV)  ## the chart: rendered by Helm 4 and 3, checked, and run as processes
	$(BIN)/python -m tests.suites helm
