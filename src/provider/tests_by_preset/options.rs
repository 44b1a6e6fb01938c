//! What a source may set, and what is refused.

use super::*;

#[test]
fn options_a_preset_does_not_know_are_named() {
    let tolerance = Options {
        tolerance: Some(Duration::from_mins(1)),
        ..Options::default()
    };
    let public_url = Options {
        public_url: Some("https://x.test/hook".into()),
        ..Options::default()
    };
    let dialect = Options {
        dialect: Some("classic".into()),
        ..Options::default()
    };
    let scheme = Options {
        hmac: Some(shop()),
        ..Options::default()
    };
    let refused = |name: &str, options: &Options, word: &str| {
        let error = build(name, options).unwrap_err().to_string();
        assert!(error.contains(word), "{name}: {error}");
    };
    for name in NAMES.iter().filter(|name| **name != "hmac") {
        refused(name, &public_url, "public_url");
        refused(name, &dialect, "classic");
        refused(name, &scheme, "hmac");
    }
    refused("github", &tolerance, "tolerance");
    refused("adyen", &tolerance, "tolerance");
    refused("hmac", &Options::default(), "[source.hmac]");
    refused("strpe", &Options::default(), "stripe");
    assert!(build("stripe", &tolerance).is_ok());
}

#[test]
fn f81_a_scheme_that_signs_the_address_needs_it() {
    let scheme = || HmacOptions {
        header: "X-Sig".into(),
        signed: "{url}{body}".into(),
        ..HmacOptions::default()
    };
    assert!(
        hmac(scheme())
            .unwrap_err()
            .to_string()
            .contains("public_url")
    );
    for (url, good) in [
        ("https://hooks.example.com/webhooks/shop/?x=1", true),
        ("http://localhost:8080/webhooks/shop", true),
        ("hooks.example.com/webhooks/shop", false),
        ("https://", false),
        ("https:///x", false),
        ("https://x.test/a b", false),
        ("", false),
    ] {
        let options = Options {
            public_url: Some(url.into()),
            hmac: Some(scheme()),
            ..Options::default()
        };
        assert_eq!(build("hmac", &options).is_ok(), good, "{url}");
    }
}

#[test]
fn a_scheme_that_cannot_be_kept_is_refused_with_the_option() {
    type Fault = fn(&mut HmacOptions);
    let faults: [(&str, Fault); 12] = [
        ("header", |s| s.header = String::new()),
        ("header", |s| s.header = "X Sig".into()),
        ("signed", |s| s.signed = "{timestamp}".into()),
        ("signed", |s| s.signed = "{body".into()),
        ("signed", |s| s.signed = "{secret}{body}".into()),
        ("timestamp_header", |s| s.timestamp_header = None),
        ("timestamp", |s| s.signed = "{body}".into()),
        ("timestamp_header", |s| {
            s.timestamp_header = Some("a b".into());
        }),
        ("event_id", |s| {
            s.event_id = Some(EventId::One("/id".into()));
        }),
        ("event_id", |s| s.event_id = Some(EventId::Several(vec![]))),
        ("event_type", |s| s.event_type = Some("json:type".into())),
        ("entity", |s| s.entity = Some("header:".into())),
    ];
    for (option, fault) in faults {
        let mut scheme = shop();
        fault(&mut scheme);
        let error = hmac(scheme).unwrap_err().to_string();
        assert!(error.contains(option), "{option}: {error}");
    }
    let mut scheme = shop();
    scheme.signed = "{id}.{timestamp}.{body}".into();
    assert!(
        hmac(scheme.clone())
            .unwrap_err()
            .to_string()
            .contains("event_id")
    );
    scheme.event_id = Some(EventId::One("header:X-Id".into()));
    assert!(hmac(scheme).is_ok());
}

#[test]
fn the_scheme_is_read_from_the_configuration_and_unknown_names_are_errors() {
    let read = |text: &str| serde_json::from_str::<HmacOptions>(text);
    let scheme = read(
        r#"{"header":"X","signed":"{body}","hash":"sha512","encoding":"base64","prefix":"p",
            "timestamp_unit":"ms","event_id":["json:/a","header:B"]}"#,
    )
    .unwrap();
    assert_eq!(scheme.timestamp_unit, Unit::Milliseconds);
    assert_eq!(
        scheme.event_id,
        Some(EventId::Several(vec!["json:/a".into(), "header:B".into()]))
    );
    let defaults = read(r#"{"header":"X"}"#).unwrap();
    assert_eq!(defaults.signed, "{body}");
    for bad in [
        "{}",
        r#"{"header":"X","hash":"md5"}"#,
        r#"{"header":"X","encoding":"base64url"}"#,
        r#"{"header":"X","secret":"s"}"#,
        r#"{"header":"X","event_id":7}"#,
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_the_signature_leaves_open_is_said() {
    let warnings = |provider: Arc<dyn Provider>| provider.warnings().join("\n");
    assert!(warnings(preset("github")).contains("X-GitHub-Delivery"));
    assert_eq!(warnings(preset("stripe")), "");
    assert_eq!(warnings(preset("standard-webhooks")), "");
    let weak = HmacOptions {
        header: "X-Sig".into(),
        signed: "{body}".into(),
        ..HmacOptions::default()
    };
    assert!(warnings(hmac(weak).unwrap()).contains("event_id"));
    let infos = list();
    assert!(
        NAMES
            .iter()
            .all(|name| infos.iter().any(|info| info.name == *name))
    );
    assert_eq!(infos.len(), 7);
}
