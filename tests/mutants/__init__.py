"""Mutations of the rules' code, each with the test that must fail by it: `make mutants`."""
