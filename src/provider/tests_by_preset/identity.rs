//! Keys, modes, digests and what is unreadable.

use super::*;

#[test]
fn f18_mode_is_part_of_the_key_unless_live() {
    for (body, key, mode) in [
        (r#"{"id":"evt_1","livemode":true}"#, "evt_1", Mode::Live),
        (
            r#"{"id":"evt_1","livemode":false}"#,
            "evt_1:mode=test",
            Mode::Test,
        ),
        (r#"{"id":"evt_1"}"#, "evt_1:mode=unknown", Mode::Unknown),
        (
            r#"{"id":"evt_1","livemode":"true"}"#,
            "evt_1:mode=unknown",
            Mode::Unknown,
        ),
        (
            r#"{"id":"evt_1","livemode":null}"#,
            "evt_1:mode=unknown",
            Mode::Unknown,
        ),
        (
            r#"{"id":"evt_1","livemode":false,"livemode":true}"#,
            "evt_1:mode=unknown",
            Mode::Unknown,
        ),
    ] {
        let item = stripe_read(body);
        assert_eq!((item.key.as_str(), item.mode), (key, Some(mode)), "{body}");
        assert_eq!(item.reading, Reading::Event);
        assert_eq!(item.provider_id.as_deref(), Some("evt_1"));
    }
}

#[test]
fn f19_no_account_is_a_value_that_collides_with_itself() {
    for (account, key) in [
        ("", "evt_1"),
        (r#","account":null"#, "evt_1"),
        (r#","account":"""#, "evt_1"),
        (r#","account":"acct_a""#, "evt_1:account=acct_a"),
        (r#","account":"a:b""#, "evt_1:account=a%3Ab"),
    ] {
        let body = format!(r#"{{"id":"evt_1","livemode":true{account}}}"#);
        assert_eq!(stripe_read(&body).key.as_str(), key);
    }
    let both = stripe_read(r#"{"id":"evt_1","account":"acct_a","livemode":false}"#);
    assert_eq!(both.key.as_str(), "evt_1:account=acct_a:mode=test");
    let strange = stripe_read(r#"{"id":"evt_1","account":{},"livemode":true}"#);
    assert!(matches!(strange.reading, Reading::Unreadable(_)));
}

#[test]
fn f20_f22_f35_what_is_no_usable_id_is_unreadable_under_the_digest() {
    let long = |length: usize| format!(r#"{{"id":"{}"}}"#, "a".repeat(length));
    let bad = [
        "{}".to_owned(),
        r#"{"id":null}"#.into(),
        r#"{"id":""}"#.into(),
        r#"{"id":true}"#.into(),
        r#"{"id":{"a":1}}"#.into(),
        r#"{"id":["evt_1"]}"#.into(),
        r#"{"id":"evt\u00001"}"#.into(),
        r#"{"id":"a","id":"b"}"#.into(),
        r#"{"ID":"a"}"#.into(),
        "[]".into(),
        "\"evt_1\"".into(),
        "null".into(),
        String::new(),
        " ".into(),
        "{".into(),
        "id=evt_1".into(),
        format!(r#"{{"id":"a","type":"{}"}}"#, "t".repeat(1_025)),
        r#"{"id":"a","type":"b\u0000"}"#.into(),
        long(1_025),
        long(5_000),
        format!("{}{}", r#"{"id":"a","x":"#, "[".repeat(100_000)),
        format!(
            r#"{{"id":"a","x":{}1{}}}"#,
            "[".repeat(128),
            "]".repeat(128)
        ),
    ];
    for body in bad {
        let item = stripe_read(&body);
        let shown: String = body.chars().take(40).collect();
        assert!(matches!(item.reading, Reading::Unreadable(_)), "{shown}");
        let digest = Digest::of(body.as_bytes());
        assert_eq!(item.key.as_str(), format!("sha256:{}", digest.hex()));
        assert_eq!((item.raw_digest, item.range), (digest, 0..body.len()));
        assert_eq!((item.canonical_digest, item.digest_rule), (None, 0));
    }
    for length in [1, 255, 1_024] {
        let item = stripe_read(&long(length));
        assert_eq!(item.reading, Reading::Event, "{length}");
        assert_eq!(item.provider_id.unwrap().len(), length);
    }
    let deep = format!(
        r#"{{"id":"a","livemode":true,"x":{}1{}}}"#,
        "[".repeat(127),
        "]".repeat(127)
    );
    assert_eq!(stripe_read(&deep).key.as_str(), "a");
}

#[test]
fn f35_what_we_do_not_need_stops_nothing() {
    let body = r#"{"id":"evt_1","livemode":true,"type":"t","a\u0000b":"\u0000","n":[1e400,0.10,-0],"data":{"object":{"id":"\u0000"}},"created":"never"}"#;
    let item = stripe_read(body);
    assert_eq!(item.reading, Reading::Event);
    assert_eq!((item.entity, item.occurred_at), (None, None));
    assert!(item.canonical_digest.is_some());
    // Doubled names elsewhere: an event, of which only the raw bytes compare.
    let item = stripe_read(r#"{"id":"evt_1","livemode":true,"x":1,"x":2}"#);
    assert_eq!((item.reading, item.digest_rule), (Reading::Event, 0));
}

#[test]
fn f36_numbers_are_ids_by_their_text() {
    let one = stripe_read(r#"{"id":9007199254740992001,"livemode":true}"#);
    let other = stripe_read(r#"{"id":9007199254740992002,"livemode":true}"#);
    assert_eq!(one.key.as_str(), "9007199254740992001");
    assert_ne!(one.key, other.key);
    let exponent = stripe_read(r#"{"id":1E2,"livemode":true}"#);
    assert_eq!(exponent.key.as_str(), "1E2");
}

#[test]
fn f25_copies_that_differ_in_volatile_members_compare_equal_under_the_stored_rule() {
    let stripe = preset("stripe");
    let one = stripe_read(r#"{"id":"e","amount":5,"pending_webhooks":2,"api_version":"a"}"#);
    let two = r#"{"api_version":"b","pending_webhooks":1, "amount":5,"id":"e"}"#;
    let changed = r#"{"id":"e","amount":6,"pending_webhooks":2,"api_version":"a"}"#;
    let compare = |text: &str| stripe.comparable(one.digest_rule, text.as_bytes());
    assert_eq!(one.digest_rule, 1);
    assert_eq!(compare(two), one.canonical_digest);
    assert_ne!(compare(changed), one.canonical_digest);
    assert_eq!(stripe.comparable(0, two.as_bytes()), None);
    assert_eq!(stripe.comparable(99, two.as_bytes()), None);
    assert_eq!(compare("no json"), None);
}

#[test]
fn times_are_read_in_both_spellings() {
    let at =
        |created: &str| stripe_read(&format!(r#"{{"id":"e","created":{created}}}"#)).occurred_at;
    assert_eq!(at("1764579600"), Some(now()));
    assert_eq!(at(r#""2025-12-01T09:00:00Z""#), Some(now()));
    assert_eq!(at(r#""2025-12-01T10:00:00.000+01:00""#), Some(now()));
    for none in [
        "1e9",
        "-1e400",
        "99999999999999999999",
        r#""2025-12-01""#,
        "null",
        "{}",
    ] {
        assert_eq!(at(none), None, "{none}");
    }
}

#[test]
fn recipes_are_pinned_because_keys_made_by_them_are_stored() {
    let recipes: Vec<_> = all().iter().map(|(p, ..)| p.recipe()).collect();
    assert_eq!(
        recipes,
        [
            "stripe: json:/id, account = json:/account | json:/context, mode = json:/livemode",
            "adyen: json:/pspReference + json:/eventCode + json:/success, original = json:/originalReference",
            "adyen: json:/type + json:/data/id | json:/data/accountHolder/id | json:/data/balanceAccount/id | json:/data/paymentInstrument/id | json:/data/sweep/id | json:/data/storeId | json:/data/merchantId | json:/data/companyId + json:/timestamp, else content by rule 1, seq = json:/data/sequenceNumber, mode = json:/environment",
            "standard-webhooks: header:webhook-id",
            "standard-webhooks: header:webhook-id",
            "github: header:x-github-delivery",
            "hmac: json:/id",
            "hmac: content by rule 1",
        ]
    );
}

#[test]
fn headers_to_store_are_those_that_verify_and_name_the_event() {
    let stored: Vec<_> = all().iter().map(|(p, ..)| p.stored_headers()).collect();
    let expected: [&[&str]; 8] = [
        &["stripe-signature"],
        &[],
        &["hmacsignature", "protocol"],
        &["webhook-id", "webhook-signature", "webhook-timestamp"],
        &["webhook-id", "webhook-signature", "webhook-timestamp"],
        &[
            "x-github-delivery",
            "x-github-event",
            "x-github-hook-id",
            "x-hub-signature-256",
        ],
        &["x-shop-signature", "x-shop-time"],
        &["x-nonce", "x-sig"],
    ];
    assert_eq!(stored, expected);
    let login = hmac(HmacOptions {
        header: "X-Sig".into(),
        signed: "{header:Authorization}{body}".into(),
        ..HmacOptions::default()
    });
    assert_eq!(login.unwrap().stored_headers(), ["x-sig"]);
}
