"""Textbook eviction policies, for comparison only: they know blocks, and nothing of chains or leaves."""
