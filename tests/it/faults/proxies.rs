//! The sender sees one configured URL that always answers; proxies and prefixes are ours to absorb.

use std::fs;

use oncehook::provider::Options;

use crate::support::signer;
use crate::support::{inbox, oncehook};

use super::calls::{self, Call};
use super::{start, start_with, stored, until_booked};

const PUBLIC_URL: &str = "https://hooks.example.com/webhooks/shop";
const BODY: &str = r#"{"id":"evt_1","type":"order.paid"}"#;

/// Signed over an address and the body.
fn over(url: &str) -> Call {
    let mac = signer::hmac_sha256(
        calls::SHOP_SECRET.as_bytes(),
        &[url.as_bytes(), b"\n", BODY.as_bytes()],
    );
    Call::new("shop", BODY).header("X-Shop-Signature", format!("v1={}", hex::encode(mac)))
}

#[tokio::test]
async fn f81_the_public_url_alone_is_hashed_whatever_host_and_scheme_arrive() {
    let mut scheme = calls::shop_scheme();
    scheme.signed = "{url}\n{body}".into();
    scheme.timestamp_header = None;
    let options = Options {
        public_url: Some(PUBLIC_URL.into()),
        ..calls::hmac(scheme)
    };
    let inbox = start_with(vec![inbox::source(
        "shop",
        "hmac",
        calls::SHOP_SECRET,
        &options,
    )])
    .await;
    for url in [
        "http://hooks.example.com/webhooks/shop",
        "https://hooks.example.com/webhooks/shop/",
        "https://hooks.example.com:443/webhooks/shop",
        "https://hooks.example.com/webhooks/shop?a=1",
        "http://x/webhooks/shop",
        "/webhooks/shop",
        "",
    ] {
        let forwarded = over(url)
            .header("X-Forwarded-Proto", "https")
            .header("X-Forwarded-Host", "x")
            .header("Forwarded", "host=x;proto=http");
        for call in [over(url), forwarded] {
            assert_eq!(call.to(inbox.public).await.status, 401, "{url}");
        }
    }
    assert_eq!(stored(&inbox.db).await, [0, 0, 0]);
    for (number, call) in [
        over(PUBLIC_URL),
        over(PUBLIC_URL).header("X-Forwarded-Host", "evil.example"),
        over(PUBLIC_URL).header("X-Original-URL", "/elsewhere"),
        over(PUBLIC_URL).at("/webhooks/shop/?token=1"),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = call.to(inbox.public).await;
        assert_eq!(
            (answer.status, answer.replayed()),
            (200, number > 0),
            "{number}"
        );
    }
    until_booked(&inbox.db, 1).await;
}

#[tokio::test]
async fn f81_check_asks_for_the_public_url_where_the_signature_covers_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.toml");
    let scheme = calls::SHOP_TOML.replace("{timestamp}.{body}", "{timestamp}{url}{body}");
    for (line, code, word) in [
        ("", 2, "`public_url` is required"),
        ("public_url = \"hooks.example.com\"", 2, "public_url"),
        ("public_url = \"https://hooks.example.com/a\"", 0, "shop"),
    ] {
        let toml = format!(
            "[database]\nurl = \"postgresql://x@127.0.0.1/x\"\n[[source]]\nname = \"shop\"\nprovider = \"hmac\"\n{line}\n\
             secrets = [{{ label = \"a\", value = {:?} }}]\n{scheme}",
            calls::SHOP_SECRET
        );
        fs::write(&config, toml).unwrap();
        let ran = oncehook(&config, &["check"], &[]).await;
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        assert!(ran.said().contains(word), "{line}: {ran:?}");
    }
}

#[tokio::test]
async fn f82_slash_and_query_name_one_address_under_every_preset_and_nothing_redirects() {
    let inbox = start().await;
    let body = r#"{"id":"evt_1","type":"t","livemode":true}"#;
    for call in [
        calls::stripe(body),
        calls::standard("evt_1", body),
        calls::github("evt_1", "push", body),
        calls::shop(body),
        calls::adyen(&[calls::adyen_item("psp_1", "o", 1)]),
    ] {
        let path = call.path.clone();
        let mut first = None;
        for (tail, known) in [
            ("", true),
            ("/", true),
            ("?a=b", true),
            ("/?a=b&c", true),
            ("//", false),
            ("/more", false),
            ("/../stripe", false),
            ("%2F", false),
        ] {
            let answer = call
                .clone()
                .at(&format!("{path}{tail}"))
                .to(inbox.public)
                .await;
            assert!(!(300..400).contains(&answer.status), "{path}{tail}");
            assert_eq!(answer.header("Location"), None);
            if known {
                assert_eq!(answer.status, 200, "{path}{tail}");
                assert_eq!(&answer.body, first.get_or_insert(answer.body.clone()));
            } else {
                assert_eq!(answer.status, 404, "{path}{tail}");
            }
        }
    }
    until_booked(&inbox.db, 5).await;
}
