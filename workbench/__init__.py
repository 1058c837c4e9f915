"""Targets, load generator, collectors, metrics and run store. Importing it loads nothing heavy."""
