# syntax=docker/dockerfile:1

# One binary on a glibc image, run by a user without rights. What of this was tried, and how, stands
# in docs/container.md.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
# Compiled in: the defaults of the configuration, the samples of `simulate`.
COPY docs/oncehook.toml docs/oncehook.toml
COPY fixtures fixtures
RUN cargo build --release --locked --bin oncehook

FROM debian:bookworm-slim
# Certificates: for database.url with sslmode=verify-full, and for https handlers.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin oncehook
COPY --from=build /src/target/release/oncehook /usr/local/bin/oncehook
USER 10001:10001
# /etc/oncehook/oncehook.toml is yours to mount; DATABASE_URL and the secrets come as variables or
# as files. Webhooks are taken from outside the container; the status listener stays on its
# loopback address, because it knows no tokens yet.
ENV ONCEHOOK_CONFIG=/etc/oncehook/oncehook.toml \
    ONCEHOOK_LISTEN__PUBLIC=0.0.0.0:8080 \
    ONCEHOOK_LOG__FORMAT=json
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["oncehook", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["oncehook"]
CMD ["serve"]
