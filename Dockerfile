# One image for the server, its health check and its clients (chat, bench).
#
#   docker build -t octavo .                                   CPU, the default
#   docker build -t octavo:cuda --build-arg TORCH_INDEX= .     CUDA: PyTorch's own default build
#
# The first stage may be as large as it likes; the second one holds what runs.
ARG BASE=python:3.11-slim
# Where pip finds PyTorch: its CPU builds, or nothing for the default, which on Linux is CUDA's.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

FROM ${BASE} AS build
ARG TORCH_INDEX
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/octavo
ENV PATH=/opt/octavo/bin:$PATH
WORKDIR /src
# PyTorch alone first, and the other dependencies before the sources: both layers outlive an edit.
COPY pyproject.toml ./
RUN python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
    e = p["optional-dependencies"]; \
    print(*p["dependencies"], *e["server"], *e["bench"], *e["otel"], sep="\n")' > /tmp/requirements.txt
RUN grep '^torch' /tmp/requirements.txt > /tmp/torch.txt \
 && pip install ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} --requirement /tmp/torch.txt
RUN pip install --requirement /tmp/requirements.txt
COPY . .
RUN pip install --no-deps .
# Headers, static libraries and the tests of dependencies are of no use at run time. pip stays: it
# downloads the built-in models.
RUN cd /opt/octavo/lib/python3*/site-packages \
 && rm -rf torch/include torch/test torch/share/cmake \
 && find . -name '*.a' -delete \
 && find . -type d -name tests -prune -exec rm -rf {} +

FROM ${BASE}
ARG TORCH_INDEX
# Triton, which comes with PyTorch's CUDA build, compiles its way to the driver when it first runs.
# Without a compiler there are no GPU kernels of ours.
RUN if [ -z "$TORCH_INDEX" ]; then \
        apt-get update -q \
     && apt-get install -y -q --no-install-recommends gcc libc6-dev \
     && rm -rf /var/lib/apt/lists/*; \
    fi
# A fixed id, so that the owner of a mounted cache can be set from outside.
# By hand, since the smallest bases have no useradd.
RUN echo 'octavo:x:10001:10001::/cache:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'octavo:x:10001:' >> /etc/group \
 && install -d -o 10001 -g 10001 /cache /reports
COPY --from=build /opt/octavo /opt/octavo
COPY docker/healthcheck.py /opt/octavo/healthcheck.py
ENV PATH=/opt/octavo/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    OCTAVO_CACHE=/cache \
    OCTAVO_HOST=0.0.0.0
USER octavo
WORKDIR /reports
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
# Healthy means ready: the model is loaded and the engine lives.
HEALTHCHECK --interval=5s --timeout=3s --start-period=15m --retries=3 \
    CMD ["python", "-I", "/opt/octavo/healthcheck.py"]
# The exec form: octavo is process 1 and gets the stop signal itself.
ENTRYPOINT ["octavo"]
CMD ["serve"]
