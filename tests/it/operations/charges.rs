//! Charges at a provider that loses requests and answers: each intent is one charge.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oncehook::embedded::{Charges, Conduct, Count};
use reqwest::Method;

use crate::support::{TestApp, node, until};

use super::wire::{Answer, Client, send};

const TIME_MAX: Duration = Duration::from_mins(2);

fn provider(conduct: Conduct) -> Charges {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Charges::start(any, conduct).unwrap()
}

/// An operation that charges there, and is not slowed down by how often it fails.
fn charging(provider: &Charges, lines: &str) -> String {
    format!(
        "[[operation]]\nname = \"charge\"\nkind = \"http\"\nurl = \"http://{}/charges\"\n\
         secrets = [{{ label = \"a\", value = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }}]\n\
         timeout = \"1s\"\nlease = \"6s\"\nbreaker = {{ failures = 100, minimum = 100000 }}\n\
         retry = {{ for = \"1h\", first = \"20ms\", max = \"100ms\", share = 10000 }}\n{lines}\n",
        provider.address()
    )
}

/// Comes again until there is an answer.
async fn charged(client: &Client, key: &str, amount: usize) -> Answer {
    let end = Instant::now() + TIME_MAX;
    loop {
        let body = format!("{{\"amount\": {amount}}}");
        let answer = client.submit("charge", key, body).await;
        if answer.status != 202 {
            return answer;
        }
        assert!(Instant::now() < end, "{key}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Charges so many intents, each sent by two at once; each has its own answer, and is there once.
async fn every_intent_is_one_charge(app: &TestApp, provider: &Charges, intents: usize) -> Count {
    let client = Client::of(app);
    let both = (1..=intents).map(|n| {
        let client = client.clone();
        async move {
            let key = format!("order-{n}");
            let (one, other) = tokio::join!(charged(&client, &key, n), charged(&client, &key, n));
            assert_eq!(one.kept(), other.kept());
            (n, one)
        }
    });
    for (n, answer) in join_all(both).await {
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.json()["amount"].to_string(), n.to_string());
        let charge = answer.json()["charge"].as_str().unwrap().to_owned();
        assert_eq!(
            answer.header("Location"),
            Some(&*format!("/charges/{charge}"))
        );
    }
    let charges = provider.charges();
    let amounts: BTreeSet<_> = charges.iter().map(|charge| &charge.amount).collect();
    let references: BTreeSet<_> = charges.iter().map(|charge| &charge.reference).collect();
    assert_eq!(charges.len(), intents);
    assert_eq!((amounts.len(), references.len()), (intents, intents));
    app.db.verify().await;
    provider.count()
}

#[tokio::test]
async fn a_provider_that_ignores_keys_and_loses_answers_charges_once_where_it_is_asked() {
    let provider = provider(Conduct {
        loses_requests: 15,
        drops_replies: 60,
        delay_ms: 5,
        ..Conduct::default()
    });
    let probe = format!(
        "on_unknown = \"probe\"\nprobe = {{ url = \"http://{}/charges/by-reference/{{effect_key}}\", \
         after = [\"200ms\", \"7s\", \"9s\", \"12s\", \"20s\", \"30s\"] }}",
        provider.address()
    );
    let app = TestApp::builder()
        .toml(&charging(&provider, &probe))
        .start()
        .await;
    let count = every_intent_is_one_charge(&app, &provider, 60).await;
    assert!(
        count.lost_requests > 0 && count.dropped_replies > 0,
        "{count:?}"
    );
    let probed = app.db.count("outcome WHERE decided_by = 'probe'").await;
    assert!(probed > 0, "{count:?}");
    provider.stop().await;
}

#[tokio::test]
async fn a_provider_that_honours_keys_charges_once_however_often_it_is_called() {
    let provider = provider(Conduct {
        honours_keys: true,
        loses_requests: 20,
        drops_replies: 60,
        ..Conduct::default()
    });
    let app = TestApp::builder()
        .toml(&charging(&provider, "on_unknown = \"retry\""))
        .start()
        .await;
    let count = every_intent_is_one_charge(&app, &provider, 60).await;
    assert!(
        count.lost_requests > 0 && count.dropped_replies > 0,
        "{count:?}"
    );
    assert!(count.requests > 60, "{count:?}");
    provider.stop().await;
}

#[tokio::test]
async fn the_provider_does_as_it_is_told() {
    let provider = provider(Conduct::default());
    let url = format!("http://{}", provider.address());
    let http = node::client();
    let charge = |key: &str| {
        let request = http
            .post(format!("{url}/charges"))
            .body("{\"amount\": 5.10}");
        request.header("Idempotency-Key", key)
    };
    let first = send(charge("a")).await;
    assert_eq!(first.status, 201);
    let body = r#"{"charge":"ch_1","amount":5.10,"reference":"a"}"#;
    assert_eq!(first.body, body);
    // Without keys every call charges.
    assert_ne!(send(charge("a")).await.body, body);
    assert_eq!(provider.charges().len(), 2);
    let conduct = |text: &str| {
        let put = http.request(Method::PUT, format!("{url}/conduct"));
        send(put.body(text.to_owned()))
    };
    assert_eq!(conduct(r#"{"drops_replies": 101}"#).await.status, 400);
    assert_eq!(conduct(r#"{"drops": 1}"#).await.status, 400);
    let told = conduct(r#"{"honours_keys": true, "drops_replies": 100}"#).await;
    assert_eq!(told.status, 200, "{told:?}");
    // It is lost without a byte, and the charge is there.
    let lost = charge("b").send().await.unwrap_err();
    assert!(!lost.is_connect() && lost.status().is_none(), "{lost:?}");
    assert_eq!(provider.charges().len(), 3);
    assert_eq!(conduct(r#"{"honours_keys": true}"#).await.status, 200);
    let again = send(charge("b")).await;
    assert_eq!(
        (again.status, again.json()["charge"].as_str()),
        (201, Some("ch_3"))
    );
    assert_eq!(provider.charges().len(), 3);
    let asked = |key: &str| send(http.get(format!("{url}/charges/by-reference/{key}")));
    let found = asked("b").await.json();
    assert_eq!(
        (&found["state"], &found["external_id"]),
        (&"applied".into(), &"ch_3".into())
    );
    assert_eq!(asked("c").await.body, r#"{"state":"absent"}"#);
    let lose = Conduct {
        loses_requests: 100,
        ..Conduct::default()
    };
    provider.conduct(lose);
    assert!(charge("d").send().await.is_err());
    assert_eq!(provider.charges().len(), 3);
    let count = send(http.get(format!("{url}/charges"))).await;
    let expected = r#"{"charges":3,"requests":5,"lost_requests":1,"dropped_replies":1}"#;
    assert_eq!(count.body, expected);
    provider.stop().await;
}

#[tokio::test]
async fn dev_charges_at_its_provider_and_settles_what_is_lost() {
    let db = crate::support::TestDb::blank().await;
    let place = tempfile::tempdir().unwrap();
    let announced = place.path().join("announced");
    let mut dev = tokio::process::Command::new(env!("CARGO_BIN_EXE_oncehook"))
        .args(["dev", "--announce"])
        .current_dir(place.path())
        .env("DATABASE_URL", &db.url)
        .stdin(std::process::Stdio::null())
        .stdout(std::fs::File::create(&announced).unwrap())
        .stderr(std::fs::File::create(place.path().join("said")).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut api = None;
    until("dev is ready", async || {
        let said = std::fs::read_to_string(&announced).unwrap();
        api = serde_json::from_str::<serde_json::Value>(said.lines().next().unwrap_or_default())
            .ok()
            .and_then(|said| said["api"].as_str()?.parse().ok());
        api.is_some()
    })
    .await;
    let client = Client::at(api.unwrap());
    let first = client.submit("charge", "order-1", r#"{"amount": 5}"#).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert!(
        client
            .submit("charge", "order-1", r#"{"amount": 5}"#)
            .await
            .replayed()
    );

    // As it says on the screen.
    let said = std::fs::read_to_string(place.path().join("said")).unwrap();
    let line = said.lines().find(|line| line.contains("/conduct")).unwrap();
    let url = line.rsplit(' ').next().unwrap();
    let told = node::client().put(url).body(r#"{"drops_replies": 100}"#);
    assert_eq!(send(told).await.status, 200);
    let lost = client.submit("charge", "order-2", r#"{"amount": 6}"#).await;
    assert_eq!(lost.status, 202, "{lost:?}");
    client.until_state("charge", "order-2", "completed").await;
    let again = client.submit("charge", "order-2", r#"{"amount": 6}"#).await;
    assert_eq!((again.status, again.replayed()), (201, true), "{again:?}");
    let charges = send(node::client().get(url.replace("/conduct", "/charges"))).await;
    let expected = r#"{"charges":2,"requests":2,"lost_requests":0,"dropped_replies":1}"#;
    assert_eq!(charges.body, expected);
    dev.kill().await.unwrap();
}
