# The simulator and `blis serve`: docker build --tag blis . && docker run --publish 8000:8000 blis
# Any other command: docker run --volume "$PWD:/work" --user "$(id -u)" blis run --workload chat --model llama-3.1-8b
# Other extras: docker build --build-arg EXTRAS=serve,plots,frames .
FROM python:3.12-bookworm AS build
ARG EXTRAS=serve
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/blis \
    && PIP_BUILD_CONSTRAINT=constraints.txt PIP_CONSTRAINT=constraints.txt pip --python /opt/blis/bin/python \
    install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

FROM python:3.12-slim-bookworm
COPY --from=build /opt/blis /opt/blis
ENV PATH=/opt/blis/bin:$PATH PYTHONUNBUFFERED=1 BLIS_CACHE=/tmp/blis-cache
RUN useradd --uid 10001 --create-home blis && install --directory --owner=blis /work
USER 10001
WORKDIR /work
EXPOSE 8000
# Of `blis serve` on its default port; other commands end before it is looked at, or are started with --no-healthcheck.
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["blis"]
CMD ["serve", "--host", "0.0.0.0", "--model", "llama-3.1-8b", "--gpu", "h100"]
