//! What is read out of a verified body: keys, modes, accounts, digests, and what is unreadable.

use super::*;
use crate::domain::fingerprint::Rule;
use crate::domain::{Digest, Mode, Reading};
use crate::provider::{OnConflict, Source};

fn is_unreadable(item: &Item) -> bool {
    let by_digest = item.key.as_str() == format!("sha256:{}", item.raw_digest.hex());
    matches!(item.reading, Reading::Unreadable(_)) && by_digest && item.provider_id.is_none()
}

fn key_of(body: &str) -> String {
    stripe(body).key.to_string()
}

#[test]
fn f18_the_mode_is_part_of_the_key_unless_it_is_live() {
    for (mode, key, expected) in [
        ("true", "evt_1", Mode::Live),
        ("false", "evt_1:mode=test", Mode::Test),
        ("null", "evt_1:mode=unknown", Mode::Unknown),
        ("\"true\"", "evt_1:mode=unknown", Mode::Unknown),
        ("1", "evt_1:mode=unknown", Mode::Unknown),
        ("[]", "evt_1:mode=unknown", Mode::Unknown),
        (
            "true,\"livemode\":true",
            "evt_1:mode=unknown",
            Mode::Unknown,
        ),
        (
            "false,\"live\\u006dode\":true",
            "evt_1:mode=unknown",
            Mode::Unknown,
        ),
    ] {
        let item = stripe(format!(r#"{{"id":"evt_1","type":"a","livemode":{mode}}}"#));
        assert_eq!(
            (item.key.as_str(), item.mode),
            (key, Some(expected)),
            "{mode}"
        );
        assert_eq!(item.reading, Reading::Event);
    }
    assert_eq!(key_of(r#"{"id":"evt_1"}"#), "evt_1:mode=unknown");
}

#[test]
fn f18_a_mode_that_is_not_accepted_is_stored_and_never_run() {
    let runs = |body: &str, accept_modes: Option<Vec<Mode>>| {
        let source = Source {
            name: "stripe".to_owned(),
            was: None,
            provider: preset("stripe"),
            secrets: Vec::new(),
            accept_modes,
            on_conflict: OnConflict::default(),
        };
        let mut items = [stripe(body)];
        source.apply_modes(&mut items);
        items[0].reading == Reading::Event
    };
    let live = r#"{"id":"evt_1","livemode":true}"#;
    let test = r#"{"id":"evt_1","livemode":false}"#;
    let unknown = r#"{"id":"evt_1"}"#;
    let only = |mode| Some(vec![mode]);
    for (body, modes, expected) in [
        (live, None, true),
        (test, None, true),
        (unknown, None, false),
        (live, only(Mode::Live), true),
        (test, only(Mode::Live), false),
        (unknown, only(Mode::Live), false),
        (live, only(Mode::Test), false),
        (test, only(Mode::Test), true),
        (unknown, only(Mode::Test), false),
        (unknown, only(Mode::Unknown), false),
    ] {
        assert_eq!(runs(body, modes.clone()), expected, "{body} {modes:?}");
    }
}

#[test]
fn f19_the_account_is_part_of_the_key() {
    let with = |member: &str| key_of(&format!(r#"{{"id":"evt_1","livemode":true{member}}}"#));
    assert_eq!(with(""), "evt_1");
    assert_eq!(with(r#","account":null"#), "evt_1");
    assert_eq!(with(r#","account":"""#), "evt_1");
    assert_eq!(with(r#","account":"a""#), "evt_1:account=a");
    assert_eq!(with(r#","account":"b""#), "evt_1:account=b");
    assert_eq!(
        with(r#","account":"a:mode=test""#),
        "evt_1:account=a%3Amode=test"
    );
    for unusable in [
        r#""account":{}"#,
        r#""account":true"#,
        r#""account":"a","account":"b""#,
    ] {
        let item = stripe(format!(r#"{{"id":"evt_1","livemode":true,{unusable}}}"#));
        assert!(is_unreadable(&item), "{unusable}: {item:?}");
    }
}

#[test]
fn thin_events_of_stripe_are_read() {
    let item = stripe(
        r#"{"id":"evt_65","object":"v2.core.event","type":"v1.billing.meter.error_report_triggered",
        "livemode":false,"created":"2024-09-17T06:20:52.246Z","context":"acct_1",
        "related_object":{"id":"mtr_1","type":"billing.meter","url":"/v1/billing/meters/mtr_1"}}"#,
    );
    assert_eq!(item.key.as_str(), "evt_65:account=acct_1:mode=test");
    assert_eq!(item.provider_id.as_deref(), Some("evt_65"));
    assert_eq!(item.entity.as_deref(), Some("mtr_1"));
    assert_eq!(item.account.as_deref(), Some("acct_1"));
    let event_type = item.event_type.as_deref();
    assert_eq!(event_type, Some("v1.billing.meter.error_report_triggered"));
    let moment = item.occurred_at.map(Timestamp::as_millisecond);
    assert_eq!(moment, Some(1_726_554_052_246));
}

#[test]
fn f20_the_id_stands_where_the_source_says() {
    let key = |event_id: Option<EventId>, id: &str, body: &str| {
        let provider = hmac(|o| (o.event_id, o.event_type) = (event_id, None)).unwrap();
        let mut sent = headers([("X-Id", id)]);
        let mac = hex_mac(CHOSEN.as_bytes(), &[body.as_bytes()]);
        sent.push("X-Signature", mac);
        let verified = verify(&provider, CHOSEN, &sent, body.as_bytes()).unwrap();
        let request = request(&sent, body.as_bytes());
        provider.unwrap(&request, &verified).remove(0)
    };
    let one = |text: &str| Some(EventId::One(text.to_owned()));
    let pair = || Some(several(&["json:/a", "json:/b"]));
    for (event_id, id, body, expected) in [
        (one("json:/a"), "", r#"{"a":"x"}"#, "x"),
        (one("json:/a/0/b"), "", r#"{"a":[{"b":"x"}]}"#, "x"),
        (one("header:x-id"), "x", "not json", "x"),
        (one("header:X-ID"), "x y", "", "x y"),
        (pair(), "", r#"{"a":"x","b":"y"}"#, "x:y"),
        (pair(), "", r#"{"a":"x:y","b":"z"}"#, "x%3Ay:z"),
        (pair(), "", r#"{"a":"x","b":"y:z"}"#, "x:y%3Az"),
        (pair(), "", r#"{"a":"x%3Ay","b":7}"#, "x%253Ay:7"),
        (
            Some(several(&["header:X-Id", "json:/b"])),
            "h",
            r#"{"b":"y"}"#,
            "h:y",
        ),
    ] {
        let item = key(event_id.clone(), id, body);
        assert_eq!(item.key.as_str(), expected, "{event_id:?} {body}");
        assert_eq!(item.reading, Reading::Event);
    }
    for (event_id, id, body) in [
        (one("json:/a"), "", r#"{"b":"x"}"#),
        (one("json:/a"), "", "not json"),
        (one("json:/a"), "", ""),
        (one("header:X-Id"), "", r#"{"a":"x"}"#),
        (pair(), "", r#"{"a":"x"}"#),
        (pair(), "", r#"{"b":"x"}"#),
        (pair(), "", r#"{"a":"","b":"x"}"#),
        (pair(), "", r#"{"a":"x","b":null}"#),
    ] {
        let item = key(event_id.clone(), id, body);
        assert!(is_unreadable(&item), "{event_id:?} {body}");
    }
    // Without a rule the content is the name: order and blanks of JSON do not count, values do.
    let content = |body: &str| key(None, "", body).key.to_string();
    assert!(content("{}").starts_with("content:"));
    assert_eq!(content(r#"{"a":1,"b":2}"#), content(r#"{ "b":2, "a":1 }"#));
    assert_ne!(content(r#"{"a":1,"b":2}"#), content(r#"{"a":1,"b":3}"#));
    assert_eq!(key(None, "", r#"{"a":1}"#).reading, Reading::Event);
    // Where nothing is read from the body it may be anything.
    let opaque = key(None, "", "not json");
    let expected = format!("content:{}", Digest::of(b"not json").hex());
    assert_eq!(opaque.key.as_str(), expected);
    assert_eq!(opaque.reading, Reading::Event);
    let typed = hmac(|o| o.event_id = None).unwrap();
    assert!(is_unreadable(&item(&typed, CHOSEN, "", b"not json")));
}

#[test]
fn f20_the_operator_is_told_what_a_rule_is_worth() {
    let weak = hmac(|o| o.event_id = None).unwrap().warnings().concat();
    assert!(weak.contains("equal content"), "{weak}");
    let unsigned = hmac(|o| o.event_id = Some(EventId::One("header:X-Id".to_owned())));
    let unsigned = unsigned.unwrap().warnings().concat();
    assert!(unsigned.contains("X-Id"), "{unsigned}");
    assert!(
        preset("github")
            .warnings()
            .concat()
            .contains("X-GitHub-Delivery")
    );
    for quiet in [
        preset("stripe"),
        preset("standard-webhooks"),
        hmac(|_| ()).unwrap(),
    ] {
        assert!(quiet.warnings().is_empty(), "{quiet:?}");
    }
    for event_id in [
        EventId::One("id".to_owned()),
        EventId::One("json:".to_owned()),
        EventId::One("json:id".to_owned()),
        EventId::One("json:/a~2".to_owned()),
        EventId::One("header:a b".to_owned()),
        EventId::One("header:".to_owned()),
        EventId::Several(Vec::new()),
        EventId::Several(vec!["json:/a".to_owned(), "b".to_owned()]),
    ] {
        let error = hmac(|o| o.event_id = Some(event_id.clone())).unwrap_err();
        assert!(error.to_string().contains("event_id"), "{error}");
    }
}

#[test]
fn recipes_differ_where_keys_do() {
    let mut recipes: Vec<String> = every().iter().map(|(p, _, _)| p.recipe()).collect();
    recipes.sort();
    recipes.dedup();
    // Both dialects of Standard Webhooks make one kind of key, and so do two of the HMAC sources.
    assert_eq!(recipes.len(), every().len() - 2, "{recipes:#?}");
    assert_eq!(
        preset("stripe").recipe(),
        "stripe: json:/id, account = json:/account | json:/context, mode = json:/livemode"
    );
    let content = hmac(|o| o.event_id = None).unwrap().recipe();
    assert_eq!(content, "hmac: content by rule 1");
}

#[test]
fn f22_ids_are_measured_in_bytes_and_never_cut() {
    for (length, good) in [
        (1, true),
        (255, true),
        (1_024, true),
        (1_025, false),
        (5_000, false),
    ] {
        let id = "i".repeat(length);
        let item = stripe(format!(r#"{{"id":"{id}","livemode":true}}"#));
        assert_eq!(item.key.as_str() == id, good, "{length}");
        assert_eq!(is_unreadable(&item), !good, "{length}");
    }
    let body = |id: &str, account: &str| {
        format!(r#"{{"id":"{id}","account":"{account}","livemode":false}}"#)
    };
    let (long, wide) = ("i".repeat(1_000), "é".repeat(513));
    assert!(!is_unreadable(&stripe(body(&long, &long))));
    assert!(is_unreadable(&stripe(body(&wide, ""))));
    assert!(is_unreadable(&stripe(body(&":".repeat(700), ""))));
    assert!(is_unreadable(&stripe(body(
        &"i".repeat(1_024),
        &"a".repeat(1_024)
    ))));
    let item = stripe(format!(r#"{{"id":"a","type":"{}"}}"#, "t".repeat(1_025)));
    assert!(is_unreadable(&item));
}

#[test]
fn f25_only_what_honest_copies_differ_in_is_left_out_of_the_digest() {
    let body = |amount: &str, pending: u8, version: &str| {
        format!(
            r#"{{"id":"evt_1","livemode":true,"api_version":"{version}","pending_webhooks":{pending},
            "data":{{"object":{{"id":"ch_1","amount":{amount},"pending_webhooks":3}}}}}}"#
        )
    };
    let first = stripe(body("4200", 2, "2024-06-20"));
    let rule = first.digest_rule;
    let digest = |body: &str| preset("stripe").comparable(rule, body.as_bytes()).unwrap();
    assert!(rule > Rule::RAW);
    assert_eq!(
        first.canonical_digest,
        Some(digest(&body("4200", 2, "2024-06-20")))
    );
    for copy in [
        body("4200", 1, "2024-06-20"),
        body("4200", 2, "2025-03-31.basil"),
        body("4200", 0, "x")
            .replace('\n', " ")
            .replace("            ", ""),
    ] {
        assert_eq!(first.canonical_digest, Some(digest(&copy)), "{copy}");
        assert_ne!(first.raw_digest, stripe(&copy).raw_digest);
    }
    for changed in [
        body("4201", 2, "2024-06-20"),
        body("4200.0", 2, "2024-06-20"),
        body("\"4200\"", 2, "2024-06-20"),
        body("4200", 2, "2024-06-20").replace("ch_1", "ch_2"),
        // The same name deeper inside is content.
        body("4200", 2, "2024-06-20").replace("_webhooks\":3", "_webhooks\":2"),
    ] {
        assert_ne!(first.canonical_digest, Some(digest(&changed)), "{changed}");
    }
    assert_eq!(preset("stripe").comparable(99, b"{}"), None);
    assert_eq!(preset("stripe").comparable(rule, b"not json"), None);
    assert_eq!(preset("stripe").comparable(rule, br#"{"a":1,"a":1}"#), None);
}

#[test]
fn f35_an_escaped_nul_harms_the_id_only() {
    let good = stripe(r#"{"id":"evt_1","livemode":true,"a\u0000b":"\u0000"}"#);
    assert_eq!(
        (good.key.as_str(), &good.reading),
        ("evt_1", &Reading::Event)
    );
    assert!(good.canonical_digest.is_some());
    for bad in [
        r#"{"id":"evt_\u00001","livemode":true}"#,
        r#"{"id":"evt_1\u0000","livemode":true}"#,
        r#"{"id":"evt_1","type":"a\u0000","livemode":true}"#,
        r#"{"id":"evt_1","account":"\u0000","livemode":true}"#,
    ] {
        assert!(is_unreadable(&stripe(bad)), "{bad}");
    }
    let entity = stripe(r#"{"id":"evt_1","livemode":true,"data":{"object":{"id":"\u0000"}}}"#);
    assert_eq!((entity.key.as_str(), entity.entity), ("evt_1", None));
}

#[test]
fn f36_numbers_are_their_text() {
    let provider = hmac(|o| o.entity = Some("json:/order".to_owned())).unwrap();
    let read = |id: &str| {
        let body = format!(
            r#"{{"id":{id},"order":9007199254740993,"a":1e400,"b":0.10,"c":-0,"d":123456789012345678901}}"#
        );
        item(&provider, CHOSEN, "", body.as_bytes())
    };
    let (one, other) = (read("1234567890123456789"), read("1234567890123456788"));
    assert_eq!(one.key.as_str(), "1234567890123456789");
    assert_eq!(other.key.as_str(), "1234567890123456788");
    assert_eq!(one.provider_id.as_deref(), Some("1234567890123456789"));
    assert_eq!(one.entity.as_deref(), Some("9007199254740993"));
    assert!(one.canonical_digest.is_some() && one.reading == Reading::Event);
    assert_eq!(read("1e400").key.as_str(), "1e400");
}

#[test]
fn f37_depth_is_limited_and_harmless() {
    for (depth, good) in [(127, true), (128, true), (129, false), (100_000, false)] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let inner = depth - 1;
            let body = format!(
                r#"{{"id":"evt_1","livemode":true,"deep":{}1{}}}"#,
                open.repeat(inner),
                close.repeat(inner)
            );
            let item = stripe(&body);
            assert_eq!(is_unreadable(&item), !good, "{depth}");
            let adyen = verify(
                &preset("adyen"),
                ADYEN,
                &Headers::default(),
                body.as_bytes(),
            );
            assert_eq!(adyen, Err(Refusal::MalformedBody), "{depth}");
        }
    }
}

#[test]
fn what_is_no_id_makes_the_event_unreadable() {
    for id in [
        "null",
        "\"\"",
        "{}",
        "{\"id\":\"x\"}",
        "[]",
        "[\"x\"]",
        "true",
        "false",
    ] {
        let item = stripe(format!(r#"{{"id":{id},"type":"a","livemode":true}}"#));
        assert!(is_unreadable(&item), "{id}");
        assert_eq!(item.event_type.as_deref(), Some("a"), "{id}");
    }
    for body in [
        "",
        " ",
        "{}",
        "[]",
        "null",
        "7",
        "\"evt_1\"",
        r#"[{"id":"evt_1"}]"#,
        r#"{"Id":"evt_1"}"#,
        r#"{"id":"evt_1","livemode":true"#,
        r#"{"id":"evt_1"}{}"#,
        r#"{"id":"evt_1","id":"evt_2","livemode":true}"#,
        r#"{"id":"evt_1","\u0069d":"evt_1","livemode":true}"#,
        r#"{"id":"evt_1","type":"a","type":"b","livemode":true}"#,
        "\u{feff}{\"id\":\"evt_1\"}",
    ] {
        assert!(is_unreadable(&stripe(body)), "{body}");
    }
    let latin1 = b"{\"id\":\"evt_\xe9\"}";
    let item = stripe(latin1);
    assert_eq!(item.reading, Reading::Unreadable("the body is not UTF-8"));
    // A number is an id, by its text; doubled names elsewhere leave raw bytes to compare by.
    assert_eq!(key_of(r#"{"id":7,"livemode":true}"#), "7");
    let doubled = stripe(r#"{"id":"evt_1","livemode":true,"x":1,"x":2}"#);
    assert_eq!(
        (doubled.key.as_str(), doubled.digest_rule),
        ("evt_1", Rule::RAW)
    );
    assert_eq!(doubled.canonical_digest, None);
}

#[test]
fn nothing_is_trimmed_or_folded_in_an_id() {
    for (body, key) in [
        (r#"{"id":" evt_1 ","livemode":true}"#, " evt_1 "),
        (r#"{"id":"EVT_1","livemode":true}"#, "EVT_1"),
        (r#"{"id":"e\u0301","livemode":true}"#, "e\u{301}"),
        (r#"{"id":"\u00e9","livemode":true}"#, "\u{e9}"),
        (r#"{"id":"sha256:00","livemode":true}"#, "sha256%3A00"),
        (r#"{"id":"a\nb","livemode":true}"#, "a\nb"),
    ] {
        assert_eq!(key_of(body), key);
    }
}

#[test]
fn standard_webhooks_may_have_no_body_and_need_an_id() {
    let provider = preset("standard-webhooks");
    let empty = item(&provider, STANDARD_WEBHOOKS, "msg_1", b"");
    assert_eq!(
        (empty.key.as_str(), &empty.reading),
        ("msg_1", &Reading::Event)
    );
    assert_eq!(empty.event_type, None);
    let text = item(&provider, STANDARD_WEBHOOKS, "msg_1", b"not json");
    assert!(is_unreadable(&text));
    let full =
        br#"{"type":"invoice.paid","timestamp":"2023-11-14T22:13:20Z","data":{"id":"in_1"}}"#;
    let full = item(&provider, STANDARD_WEBHOOKS, "msg_1", full);
    assert_eq!(full.entity.as_deref(), Some("in_1"));
    assert_eq!(full.event_type.as_deref(), Some("invoice.paid"));
    assert_eq!(full.occurred_at, Some(at(NOW)));
}

#[test]
fn github_sends_json_or_a_form_around_it() {
    let provider = preset("github");
    let read = |body: &[u8], event: &str, delivery: &[&str]| {
        let mac = hex_mac(CHOSEN.as_bytes(), &[body]);
        let mut fields = headers([
            ("X-Hub-Signature-256", &format!("sha256={mac}")),
            ("X-GitHub-Event", event),
        ]);
        for delivery in delivery {
            fields.push("X-GitHub-Delivery", *delivery);
        }
        let verified = verify(&provider, CHOSEN, &fields, body).unwrap();
        provider
            .unwrap(&request(&fields, body), &verified)
            .remove(0)
    };
    let json = br#"{"action":"opened","repository":{"id":35129377}}"#;
    let form =
        b"payload=%7B%22repository%22%3A%7B%22id%22%3A35129377%7D%2C%22action%22%3A%22opened%22%7D";
    let (plain, encoded) = (read(json, "issues", &["d1"]), read(form, "issues", &["d1"]));
    for item in [&plain, &encoded] {
        assert_eq!((item.key.as_str(), &item.reading), ("d1", &Reading::Event));
        assert_eq!(item.event_type.as_deref(), Some("issues"));
        assert_eq!(item.entity.as_deref(), Some("35129377"));
    }
    assert_eq!(plain.canonical_digest, encoded.canonical_digest);
    let stored = provider.comparable(encoded.digest_rule, form);
    assert_eq!(stored, plain.canonical_digest);
    for broken in [
        &b"payload=%7B"[..],
        b"payload=%7",
        b"other=1",
        b"",
        b"payload=1&payload=2",
    ] {
        assert!(is_unreadable(&read(broken, "push", &["d1"])), "{broken:?}");
    }
    let ping = read(br#"{"zen":"x"}"#, "ping", &["d2"]);
    assert!(matches!(ping.reading, Reading::Ignored(_)));
    assert_eq!(ping.key.as_str(), "d2");
    for delivery in [&[][..], &[""], &["d1", "d1"], &["d1", "d2"]] {
        assert!(is_unreadable(&read(json, "push", delivery)), "{delivery:?}");
    }
}
