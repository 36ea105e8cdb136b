"""Copies to a GPU through page-locked memory (OVERMIND_PIN). Not yet run on a GPU."""
