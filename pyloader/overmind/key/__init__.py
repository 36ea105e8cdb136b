"""What a cached load depends on: the lookup key of a call, and the inputs that a hit checks again.

Importing this package imports no library besides the standard one: types of torch, numpy, transformers and diffusers
are found through ``sys.modules``, because an argument of such a type proves that its library is loaded.
"""
