"""Parity with kvpress: do both choose the same entries? kvpress runs in an environment of its own."""
