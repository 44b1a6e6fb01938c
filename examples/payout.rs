//! A call to a payment service that must not be made twice, as an `external` handler in three parts.
//!
//! ```text
//! DATABASE_URL=postgresql://... STRIPE_WEBHOOK_SECRET=whsec_... cargo run --example payout
//! ```
//!
//! For every `payment_intent.succeeded` at `POST /webhooks/stripe-main` a payout is ordered from a
//! service that runs in the same process, loses every third answer, and can be asked about an effect
//! key. What was ordered stands in the application's table `shop.payout`, once per payment.

use std::collections::BTreeMap;
use std::env;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use oncehook::tokio_postgres::{self, Client, NoTls};
use oncehook::{
    Answer, Delivered, DispatchConfig, Engine, EngineConfig, External, HandlerError, HandlerKind,
    HandlerSpec, Inbox, Limits, Pattern, ProbeSchedule, Probed, Settings, Source, Store, Work,
    async_trait, migrate,
};
use serde_json::{Value, json};

type Error = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
This example needs a database of yours and a signing secret:

  DATABASE_URL=postgresql://user:password@host/database STRIPE_WEBHOOK_SECRET=whsec_... \\
    cargo run --example payout

It makes a schema `shop` there, beside oncehook's own.";

/// What the application has anyway: a table of its own.
const TABLES: &str = "
CREATE SCHEMA IF NOT EXISTS shop;
CREATE TABLE IF NOT EXISTS shop.payout (
  event_key text NOT NULL,
  payout_id text NOT NULL,
  amount    bigint NOT NULL
);";

/// Connections of the dispatcher, for handlers at work.
const CONNECTIONS: usize = 4;

/// Orders a payout per payment.
struct OrderPayout {
    http: reqwest::Client,
    /// Where the payment service is.
    service: String,
}

fn amount(event: &Delivered) -> Option<i64> {
    let body: Value = serde_json::from_slice(&event.body).ok()?;
    body.pointer("/data/object/amount")?.as_i64()
}

#[async_trait]
impl External for OrderPayout {
    /// Whatever is returned as an error (`?` as well) leaves the result unknown: the call is not
    /// repeated, the service is asked.
    async fn call(&self, effect_key: &str, event: &Delivered) -> Result<Answer, HandlerError> {
        let Some(amount) = amount(event) else {
            return Ok(Answer::Permanent("a payment without an amount".to_owned()));
        };
        let request = self.http.post(format!("{}/payouts", self.service));
        let response = request
            .header("Idempotency-Key", effect_key)
            .body(json!({ "amount": amount }).to_string())
            .send()
            .await;
        let response = match response {
            // Nothing has left: it may be tried again.
            Err(error) if error.is_connect() => {
                return Ok(Answer::Retry(None, "the service is not there".to_owned()));
            }
            // The text of an error is kept; an address may hold a token.
            response => response.map_err(reqwest::Error::without_url)?,
        };
        match response.status().as_u16() {
            201 => Ok(Answer::DoneWith(response.text().await?)),
            402 => Ok(Answer::Failed("the account has no cover".to_owned())),
            429 | 503 => Ok(Answer::Retry(None, "the service is busy".to_owned())),
            400..=499 => Ok(Answer::Permanent("the service refused it".to_owned())),
            status => Err(format!("HTTP {status}").into()),
        }
    }

    /// A plain insert: it commits together with the outcome, or not at all.
    async fn settle(
        &self,
        event: &Delivered,
        answer: &Answer,
        work: &Work<'_>,
    ) -> Result<(), HandlerError> {
        if let (Answer::DoneWith(payout), Some(amount)) = (answer, amount(event)) {
            work.execute_prepared(
                "INSERT INTO shop.payout (event_key, payout_id, amount) VALUES ($1, $2, $3)",
                &[&event.key, payout, &amount],
            )
            .await?;
        }
        Ok(())
    }

    async fn probe(&self, effect_key: &str, _: &Delivered) -> Result<Probed, HandlerError> {
        let url = format!("{}/payouts/by-key/{effect_key}", self.service);
        let response = self.http.get(url).send().await?;
        match response.status().as_u16() {
            200 => Ok(Probed::Applied {
                resource: Some(response.text().await?),
            }),
            // The service promises that a 404 is its books' word, not a router's.
            404 => Ok(Probed::Absent),
            status => Err(format!("HTTP {status}").into()),
        }
    }
}

/// Prepares the database and starts the engine.
pub(crate) async fn start(
    database_url: &str,
    secret: &str,
    service: &str,
    probes: ProbeSchedule,
) -> Result<Engine, Error> {
    let settings = Settings::parse(database_url)?;
    migrate::run(&settings).await?;
    connect(database_url).await?.batch_execute(TABLES).await?;
    // Whoever makes TLS connections finds it there; a second installation is no error.
    drop(rustls::crypto::ring::default_provider().install_default());
    let handler = OrderPayout {
        http: reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .build()?,
        service: service.to_owned(),
    };
    let payouts = HandlerSpec {
        probes,
        ..HandlerSpec::new(
            "payouts",
            vec![Pattern::parse("stripe-main:payment_intent.succeeded")?],
            HandlerKind::External(Arc::new(handler)),
        )
    };
    let config = EngineConfig {
        sources: vec![Source::new("stripe-main", "stripe", &[("a", secret)])?],
        handlers: vec![payouts],
        dispatch: Some(DispatchConfig {
            connections: CONNECTIONS,
            ..DispatchConfig::default()
        }),
        ..EngineConfig::default()
    };
    Ok(Engine::start(Store::new(settings, CONNECTIONS)?, config).await?)
}

/// A connection of the application's own.
pub(crate) async fn connect(database_url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(database_url, NoTls).await?;
    // It ends with its client.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// The payment service's books: payouts by effect key, in order. It pays once per call.
#[derive(Debug, Default)]
pub(crate) struct Service {
    orders: Mutex<Vec<(String, i64)>>,
}

impl Service {
    /// Effect keys and amounts of the payouts it has made.
    pub(crate) fn orders(&self) -> Vec<(String, i64)> {
        let orders = self.orders.lock();
        orders.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The payment service's routes.
pub(crate) fn service(app: &mut web::ServiceConfig, books: web::Data<Service>) {
    app.app_data(books)
        .route("/payouts", web::post().to(order))
        .route("/payouts/by-key/{key}", web::get().to(by_key));
}

/// Pays, and loses every third answer.
async fn order(request: HttpRequest, books: web::Data<Service>, body: web::Bytes) -> HttpResponse {
    let key = request.headers().get("Idempotency-Key");
    let key = key.and_then(|key| key.to_str().ok());
    let order: Option<BTreeMap<String, i64>> = serde_json::from_slice(&body).ok();
    let (Some(key), Some(amount)) = (key, order.and_then(|order| order.get("amount").copied()))
    else {
        return HttpResponse::BadRequest().finish();
    };
    let mut orders = books.orders.lock().unwrap_or_else(PoisonError::into_inner);
    orders.push((key.to_owned(), amount));
    if orders.len().is_multiple_of(3) {
        return HttpResponse::GatewayTimeout().finish();
    }
    HttpResponse::Created().body(format!("po_{}", orders.len()))
}

async fn by_key(key: web::Path<String>, books: web::Data<Service>) -> HttpResponse {
    let orders = books.orders();
    match orders.iter().position(|(ordered, _)| *ordered == *key) {
        Some(at) => HttpResponse::Ok().body(format!("po_{}", at + 1)),
        None => HttpResponse::NotFound().finish(),
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let (Ok(database_url), Ok(secret)) =
        (env::var("DATABASE_URL"), env::var("STRIPE_WEBHOOK_SECRET"))
    else {
        eprintln!("{USAGE}");
        return Ok(ExitCode::from(2));
    };
    let address = "127.0.0.1:8090";
    let engine = start(
        &database_url,
        &secret,
        &format!("http://{address}"),
        ProbeSchedule::default(),
    )
    .await?;
    let inbox = Inbox::new(engine.clone(), Limits::default());
    let books = web::Data::new(Service::default());
    HttpServer::new(move || {
        App::new()
            .configure(|app| service(app, books.clone()))
            .service(inbox.scope())
    })
    .bind(address)?
    .run()
    .await?;
    engine.shutdown().await;
    Ok(ExitCode::SUCCESS)
}
