//! The receiver that `dev` runs for its `http` handler: prints a line per call.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use jiff::Timestamp;

use crate::domain::Secret;
use crate::provider::{self, Headers, Options, Provider, Request};
use crate::telemetry::clean;

use super::super::printer::Printer;
use super::sample::Secrets;

/// Bodies beyond it are refused: a webhook's own limit is 1 MiB, and JSON around it adds little.
const BODY_BYTES_MAX: usize = 8 << 20;

/// The receiver at work.
#[derive(Debug)]
pub(super) struct Echo {
    address: SocketAddr,
    handle: ServerHandle,
}

/// What it checks signatures with.
#[derive(Debug, Clone)]
struct Verifier {
    provider: Arc<dyn Provider>,
    secrets: Vec<Secret>,
}

impl Echo {
    /// Listens on a free port of the loopback address.
    pub(super) fn start(printer: Printer, secrets: &Secrets) -> anyhow::Result<Self> {
        let provider = provider::build("standard-webhooks", &Options::default())?;
        let secret = Secret {
            label: "dev".to_owned(),
            key: provider.key(&secrets.echo, true)?,
            until: None,
        };
        let verifier = web::Data::new(Verifier {
            provider,
            secrets: vec![secret],
        });
        let server = HttpServer::new(move || {
            App::new()
                .app_data(web::PayloadConfig::new(BODY_BYTES_MAX))
                .app_data(verifier.clone())
                .app_data(web::Data::new(printer))
                .route("/hooks", web::post().to(receive))
        })
        .workers(1)
        .disable_signals()
        .bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = server
            .addrs()
            .first()
            .copied()
            .ok_or_else(|| io::Error::other("no address was bound"))?;
        let server = server.run();
        let handle = server.handle();
        tokio::spawn(server);
        Ok(Self { address, handle })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) async fn stop(self) {
        self.handle.stop(true).await;
    }
}

async fn receive(
    request: HttpRequest,
    body: web::Bytes,
    verifier: web::Data<Verifier>,
    printer: web::Data<Printer>,
) -> HttpResponse {
    let headers: Headers = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();
    let signed = Request {
        method: "POST",
        target: "/hooks",
        headers: &headers,
        body: &body,
    };
    let good = verifier
        .provider
        .verify(&signed, &verifier.secrets, Timestamp::now())
        .is_ok();
    let header = |name| {
        let value = headers.first(name).unwrap_or_default();
        clean(&String::from_utf8_lossy(value)).into_owned()
    };
    let word = if good {
        "signature good"
    } else {
        "SIGNATURE BAD"
    };
    let line = printer.line(format_args!(
        "echo: {} effect key {}, {} bytes, {word}",
        header("webhook-id"),
        header("idempotency-key"),
        body.len()
    ));
    match (line, good) {
        (_, false) => HttpResponse::Unauthorized().finish(),
        // Nobody reads stdout any more; the call was received all the same.
        (Ok(()) | Err(_), true) => HttpResponse::NoContent().finish(),
    }
}
