"""A folder for PYTHONPATH: the interpreter of a warm parent imports ``sitecustomize`` from here while it starts."""
