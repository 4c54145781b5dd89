"""The chart in deploy/helm/bmq: `make chart` and `make chart-apiserver`."""
