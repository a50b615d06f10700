# A node. From the repository's root:
#   docker build -f deploy/docker/node.Dockerfile -t kvstore:0.1.0 .
# With the transports for RDMA and GPU memory:
#   docker build -f deploy/docker/node.Dockerfile --build-arg EXTRAS=node,ucx --build-arg NIXL=nixl-cu12 \
#     --build-arg PACKAGES="libibverbs1 ibverbs-providers" -t kvstore:0.1.0-rdma .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# Extras of pyproject.toml.
ARG EXTRAS=node
# NIXL declares torch, which it imports only where a program has it already: so it is installed by itself.
ARG NIXL=
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY kvstore kvstore
COPY tiers tiers
COPY connector connector
# The environment gets no pip: nothing is installed into it later. Tests of libraries are half of their size.
RUN python3 -m venv --without-pip /opt/kvstore \
    && python3 -m pip --python /opt/kvstore/bin/python install --no-cache-dir -c constraints.txt ".[${EXTRAS}]" \
    && if [ -n "${NIXL}" ]; then python3 -m pip --python /opt/kvstore/bin/python install --no-cache-dir -c constraints.txt --no-deps "${NIXL}"; fi \
    && find /opt/kvstore -type d -name tests -prune -exec rm -rf {} +

FROM ${BASE}
# Of the system: user-space drivers of RDMA devices.
ARG PACKAGES=
RUN if [ -n "${PACKAGES}" ]; then \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends ${PACKAGES} && rm -rf /var/lib/apt/lists/*; fi
COPY --from=build /opt/kvstore /opt/kvstore
COPY deploy/docker/node.toml /etc/kvstore/node.toml
RUN install -d -o 10001 -g 10001 -m 0750 /run/kvstore /var/lib/kvstore
ENV PATH=/opt/kvstore/bin:$PATH \
    KVSTORE_CONFIG=/etc/kvstore/node.toml \
    KVSTORE_TARGET=unix:///run/kvstore/node.sock \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /
EXPOSE 7000 7001 7002
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s CMD ["python", "-m", "kvstore.node.probe", "readyz"]
ENTRYPOINT ["kvstore"]
CMD ["node"]
