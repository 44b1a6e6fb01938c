//! Who may use the API listener: tokens, their roles, their end; and who may where there are none.

mod door;
mod outage;
mod routes;
mod secret;
mod token;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use oncehook::domain::{ClientName, Role};
use oncehook::store::{NewToken, Settings, Store};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;

use crate::support::{TestDb, node};

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    /// `WWW-Authenticate`.
    challenge: Option<String>,
    body: String,
}

/// Asks the API listener, with a token or without; commands as JSON.
async fn ask(api: SocketAddr, request: &str, token: Option<&str>, body: &str) -> Answer {
    let (method, path) = request.split_once(' ').unwrap();
    let method: Method = method.parse().unwrap();
    let mut asked = node::client().request(method.clone(), format!("http://{api}{path}"));
    if let Some(token) = token {
        asked = asked.bearer_auth(token);
    }
    if method == Method::POST {
        asked = asked.header(CONTENT_TYPE, "application/json");
    }
    let answer = asked.body(body.to_owned()).send().await.unwrap();
    let challenge = answer.headers().get("WWW-Authenticate");
    Answer {
        status: answer.status().as_u16(),
        challenge: challenge.map(|value| value.to_str().unwrap().to_owned()),
        body: answer.text().await.unwrap(),
    }
}

/// For how long an answer of the database about a token holds: `docs/access.md` promises it.
const HOLDS: Duration = Duration::from_secs(1);

/// Does something again and again until once it began after what was known before holds no more; it is told
/// whether that is so.
async fn until_outdated(mut look: impl AsyncFnMut(bool)) {
    let began = Instant::now();
    loop {
        let outdated = began.elapsed() >= HOLDS;
        look(outdated).await;
        if outdated {
            break;
        }
    }
}

/// The status of a GET.
async fn get(api: SocketAddr, path: &str, token: Option<&str>) -> u16 {
    ask(api, &format!("GET {path}"), token, "").await.status
}

/// Makes a token: its id and its text.
pub(crate) async fn create(
    db: &TestDb,
    name: &str,
    roles: &[Role],
    lasts: Option<Duration>,
) -> (i64, String) {
    let store = Store::new(Settings::parse(&db.url).unwrap(), 1).unwrap();
    let new = NewToken {
        name: ClientName::parse(name).unwrap(),
        roles: roles.iter().copied().collect(),
        lasts,
        actor: "test".to_owned(),
    };
    let made = store.create_token(&new).await.unwrap();
    (made.token.id(), made.token.text().expose().to_owned())
}
