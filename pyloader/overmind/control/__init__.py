"""Arenas over the control socket of a mount."""

from overmind.control.client import arena_fd

__all__ = ['arena_fd']
