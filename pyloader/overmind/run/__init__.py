"""``overmind run``: programs start from a resident parent that has their libraries. See docs/warm-start.md."""
