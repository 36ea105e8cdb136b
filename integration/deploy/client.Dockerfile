# The loader, added to an image that has Python, pip and torch. From the top of the repository:
#   docker build -f integration/deploy/client.Dockerfile --build-arg BASE=YOUR_IMAGE -t YOUR_IMAGE-overmind .
# Without a Dockerfile the same is `pip install ./cext ./pyloader`.

ARG BASE=python:3.12-slim

# The helper is C++ and is built once for all versions of Python and torch; only the wheels leave this stage.
FROM python:3.12-slim AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY cext cext
COPY pyloader pyloader
RUN pip wheel --no-cache-dir --no-deps --wheel-dir wheels ./cext ./pyloader

FROM ${BASE}
RUN --mount=type=bind,from=build,source=/src/wheels,target=/tmp/wheels pip install --no-cache-dir /tmp/wheels/*.whl
ENV OVERMIND_ROOT=/cache/mnt
# Any user will do: entries belong to the uid that filled them.
USER 1000:1000
