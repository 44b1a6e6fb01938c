//! A small payment provider to try calls against: it charges, counts, loses answers when told, and can be asked.
//!
//! `oncehook dev` runs one for its operation `charge`; the tests run it inside their process. It keeps
//! everything in memory and checks neither signature nor sender: it is a demonstration, for the loopback address.
//!
//! | request | answer |
//! | --- | --- |
//! | `POST /charges` with `{"amount": 5}` and `Idempotency-Key` | 201 and the charge; 422 without an amount above zero |
//! | `GET /charges/by-reference/{reference}` | whether there is a charge under this key, as `probe` reads it |
//! | `GET /charges` | how many charges there are, and what became of requests |
//! | `GET /conduct`, `PUT /conduct` | how it behaves from now on: [`Conduct`] as JSON |

use std::any::Any;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_web::dev::{Extensions, ServerHandle};
use actix_web::http::header::{HeaderValue, LOCATION};
use actix_web::rt::net;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

const KEY: &str = "Idempotency-Key";

/// How a [`Charges`] behaves. What is left out in its JSON is as by default: it honours no keys, takes no time and
/// loses nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Conduct {
    /// A request under a known `Idempotency-Key` gets the answer of the first, and charges nothing. Otherwise
    /// every request that arrives charges.
    pub honours_keys: bool,
    /// Time between the charge and its answer, in milliseconds.
    pub delay_ms: u64,
    /// Of a hundred requests, how many are lost before they charge.
    pub loses_requests: u8,
    /// Of a hundred answers to requests that did arrive, how many are lost.
    pub drops_replies: u8,
}

/// One charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Its number, from 1 on.
    pub number: usize,
    /// The `Idempotency-Key` that it came with; empty without one.
    pub reference: String,
    /// The amount, as it was written.
    pub amount: String,
}

/// What has come and gone so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Count {
    /// Charges made.
    pub charges: usize,
    /// Requests to charge, lost ones included.
    pub requests: u64,
    /// Requests that were lost.
    pub lost_requests: u64,
    /// Answers that were dropped.
    pub dropped_replies: u64,
}

#[derive(Debug, Default)]
struct Books {
    conduct: Conduct,
    charges: Vec<Charge>,
    count: Count,
}

type Shared = Arc<Mutex<Books>>;

fn open(books: &Shared) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The provider at work. Dropping it leaves it running; [`Charges::stop`] ends it.
#[derive(Debug)]
pub struct Charges {
    address: SocketAddr,
    books: Shared,
    handle: ServerHandle,
}

/// The connection that a request came over, so that it can be cut.
struct Line(TcpStream);

impl Charges {
    /// Listens on this address, such as a free port of the loopback one. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub fn start(address: SocketAddr, conduct: Conduct) -> io::Result<Self> {
        let books = Arc::new(Mutex::new(Books {
            conduct,
            ..Books::default()
        }));
        let shared = web::Data::new(Arc::clone(&books));
        let server = HttpServer::new(move || {
            App::new()
                .app_data(shared.clone())
                .route("/charges", web::post().to(charge))
                .route("/charges", web::get().to(count))
                .route("/charges/by-reference/{reference}", web::get().to(find))
                .route("/conduct", web::get().to(told))
                .route("/conduct", web::put().to(tell))
        })
        .on_connect(remember)
        .workers(1)
        .disable_signals()
        .bind(address)?;
        let address = server
            .addrs()
            .first()
            .copied()
            .ok_or_else(|| io::Error::other("no address was bound"))?;
        let server = server.run();
        let handle = server.handle();
        tokio::spawn(server);
        Ok(Self {
            address,
            books,
            handle,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Behaves so from now on.
    pub fn conduct(&self, conduct: Conduct) {
        open(&self.books).conduct = conduct;
    }

    /// Every charge, in order.
    pub fn charges(&self) -> Vec<Charge> {
        open(&self.books).charges.clone()
    }

    /// What has come and gone so far.
    pub fn count(&self) -> Count {
        open(&self.books).count
    }

    /// Ends it; answers under way are not waited for.
    pub async fn stop(self) {
        self.handle.stop(false).await;
    }
}

/// Keeps a second hold of the connection.
fn remember(connection: &dyn Any, data: &mut Extensions) {
    if let Some(stream) = connection.downcast_ref::<net::TcpStream>()
        && let Ok(held) = stream.as_fd().try_clone_to_owned()
    {
        data.insert(Line(TcpStream::from(held)));
    }
}

/// No byte of an answer gets to the client.
fn cut(request: &HttpRequest) -> HttpResponse {
    if let Some(Line(stream)) = request.conn_data::<Line>() {
        // It may have hung up already.
        drop(stream.shutdown(Shutdown::Both));
    }
    HttpResponse::ServiceUnavailable().finish()
}

fn happens(percent: u8) -> bool {
    rand::random_range(0..100) < percent
}

impl Charge {
    fn id(&self) -> String {
        format!("ch_{}", self.number)
    }

    fn location(&self) -> String {
        format!("/charges/{}", self.id())
    }

    fn body(&self) -> String {
        let reference = json!(self.reference);
        let (id, amount) = (self.id(), &self.amount);
        format!(r#"{{"charge":"{id}","amount":{amount},"reference":{reference}}}"#)
    }
}

/// A number above zero, as it was written.
fn amount(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Asked<'a> {
        #[serde(borrow)]
        amount: &'a RawValue,
    }
    let asked: Asked<'_> = serde_json::from_slice(body).ok()?;
    let amount = asked.amount.get();
    let number: f64 = amount.parse().ok()?;
    (number > 0.0 && number.is_finite()).then(|| amount.to_owned())
}

async fn charge(request: HttpRequest, body: web::Bytes, books: web::Data<Shared>) -> HttpResponse {
    let reference = request.headers().get(KEY).map(HeaderValue::as_bytes);
    let reference = String::from_utf8_lossy(reference.unwrap_or_default()).into_owned();
    let (conduct, charge) = {
        let mut books = open(&books);
        let conduct = books.conduct;
        books.count.requests += 1;
        if happens(conduct.loses_requests) {
            books.count.lost_requests += 1;
            return cut(&request);
        }
        let charge = amount(&body).map(|amount| books.charge(reference, amount));
        (conduct, charge)
    };
    tokio::time::sleep(Duration::from_millis(conduct.delay_ms)).await;
    if happens(conduct.drops_replies) {
        open(&books).count.dropped_replies += 1;
        return cut(&request);
    }
    match charge {
        Some(charge) => HttpResponse::Created()
            .insert_header((LOCATION, charge.location()))
            .insert_header(("Oncehook-External-Id", charge.id()))
            .content_type("application/json")
            .body(charge.body()),
        None => HttpResponse::UnprocessableEntity()
            .json(json!({ "error": "amount must be a number above zero" })),
    }
}

impl Books {
    fn charge(&mut self, reference: String, amount: String) -> Charge {
        let known = self.charges.iter().find(|one| one.reference == reference);
        if let Some(known) = known.filter(|_| self.conduct.honours_keys && !reference.is_empty()) {
            return known.clone();
        }
        let charge = Charge {
            number: self.charges.len() + 1,
            reference,
            amount,
        };
        self.charges.push(charge.clone());
        self.count.charges = self.charges.len();
        charge
    }
}

/// What a probe asks: the answer brings along what the charge was, or would have been, answered with.
async fn find(reference: web::Path<String>, books: web::Data<Shared>) -> HttpResponse {
    let found = open(&books)
        .charges
        .iter()
        .find(|charge| charge.reference == *reference)
        .cloned();
    let answer = match found {
        None => r#"{"state":"absent"}"#.to_owned(),
        Some(charge) => {
            let (id, location, body) = (charge.id(), charge.location(), charge.body());
            format!(
                r#"{{"state":"applied","resource":"{location}","external_id":"{id}","response":{{"status":201,"headers":{{"Location":"{location}","Content-Type":"application/json"}},"body":{body}}}}}"#
            )
        }
    };
    HttpResponse::Ok()
        .content_type("application/json")
        .body(answer)
}

async fn count(books: web::Data<Shared>) -> HttpResponse {
    HttpResponse::Ok().json(open(&books).count)
}

async fn told(books: web::Data<Shared>) -> HttpResponse {
    HttpResponse::Ok().json(open(&books).conduct)
}

/// Whatever the content type: it is written by hand.
async fn tell(body: web::Bytes, books: web::Data<Shared>) -> HttpResponse {
    match serde_json::from_slice::<Conduct>(&body) {
        Ok(conduct) if conduct.loses_requests <= 100 && conduct.drops_replies <= 100 => {
            open(&books).conduct = conduct;
            HttpResponse::Ok().json(conduct)
        }
        Ok(_) => HttpResponse::BadRequest().json(json!({ "error": "a share is 0 to 100" })),
        Err(error) => HttpResponse::BadRequest().json(json!({ "error": error.to_string() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_a_number_above_zero_and_stays_as_it_is_written() {
        assert_eq!(
            amount(br#"{"amount": 5.10, "x": 1}"#).as_deref(),
            Some("5.10")
        );
        for body in [
            &b""[..],
            b"{}",
            br#"{"amount": 0}"#,
            br#"{"amount": -1}"#,
            br#"{"amount": "5"}"#,
            br#"{"amount": 1e999}"#,
        ] {
            assert_eq!(amount(body), None, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn what_is_left_out_of_a_conduct_is_as_by_default_and_what_is_unknown_is_refused() {
        let read = |text| serde_json::from_str::<Conduct>(text);
        assert_eq!(read("{}").unwrap(), Conduct::default());
        let drops = read(r#"{"drops_replies": 50}"#).unwrap();
        assert_eq!((drops.drops_replies, drops.honours_keys), (50, false));
        assert!(read(r#"{"drop_replies": 50}"#).is_err());
    }
}
