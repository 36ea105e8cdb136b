"""Only the extension module; everything else is in pyproject.toml."""

import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "overmind_cext._helper",
            sources=["src/helper.cpp"],
            depends=sorted(glob.glob("src/*.h")),
            language="c++",
            extra_compile_args=[
                "-std=c++17",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fvisibility=hidden",
                "-pthread",
            ],
            # A forked copier has given up what the dynamic linker would need to find a function later.
            extra_link_args=["-pthread", "-Wl,-z,now"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
