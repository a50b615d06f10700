# The connector's wheels, for an init container to copy into an engine's pod, where install.py takes those that the engine
# lacks and that fit its Python. From the repository's root:
#   docker build -f deploy/docker/engine-addon.Dockerfile -t kvstore-engine-addon:0.1.0 .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG PYTHONS="3.10 3.11 3.12 3.13"
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY kvstore kvstore
COPY tiers tiers
COPY connector connector
# No numpy: every engine has its own.
RUN python3 -m pip wheel --no-cache-dir --no-deps -w /connector/wheels . \
    && for version in $PYTHONS; do \
    python3 -m pip download --no-cache-dir -q --no-deps --only-binary=:all: --python-version "$version" \
    -c constraints.txt -d /connector/wheels grpcio protobuf xxhash typing-extensions || exit 1; done
COPY deploy/docker/install.py /connector/install.py

FROM ${BASE}
COPY --from=build /connector /connector
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT ["/bin/sh", "-ec", "cp -R /connector/. \"$1\"", "copy"]
CMD ["/mnt"]
