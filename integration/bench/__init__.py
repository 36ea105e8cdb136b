"""``make bench``: what is loaded (workloads), by whom (opponents), and what is measured of it, each a module."""
