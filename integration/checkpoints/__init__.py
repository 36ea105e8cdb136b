"""Checkpoints for the demo, the benchmark and the tests, made on this machine from published configurations."""

from integration.checkpoints.build import build

__all__ = ['build']
