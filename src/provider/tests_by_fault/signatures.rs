//! Headers, times, several signatures, several secrets.

use super::*;

const BODY: &[u8] = br#"{"id":"evt_1","type":"order.paid","livemode":true}"#;

fn stripe_mac(time: &str) -> String {
    hex_mac(STRIPE.as_bytes(), &[time.as_bytes(), b".", BODY])
}

fn stripe_verify(value: &str) -> Result<Verified, Refusal> {
    let fields = headers([("Stripe-Signature", value)]);
    verify(&preset("stripe"), STRIPE, &fields, BODY)
}

/// Standard Webhooks with this id and time; `{}` in `value` is the right signature.
fn standard_verify(id: &str, time: &str, value: &str) -> Result<Verified, Refusal> {
    let provider = preset("standard-webhooks");
    let signed = [id.as_bytes(), b".", time.as_bytes(), b".", BODY];
    let mac = STANDARD.encode(Hash::Sha256.hmac(&key(&provider, STANDARD_WEBHOOKS), &signed));
    let fields = headers([
        ("webhook-id", id),
        ("webhook-timestamp", time),
        ("webhook-signature", &value.replace("{}", &mac)),
    ]);
    verify(&provider, STANDARD_WEBHOOKS, &fields, BODY)
}

#[test]
fn f4_one_good_signature_among_rubbish_is_enough() {
    let rubbish = "0".repeat(64);
    for (value, good) in [
        ("t=1700000000,v1={}", true),
        ("t=1700000000,v1={},v1={0},v1=xyz", true),
        ("t=1700000000,v1={0},v1={}", true),
        ("v1=xyz,v1=,v1,v1={},v2=abc,,t=1700000000", true),
        ("t=1700000000, v1={0} , v1={}", true),
        ("t=1700000000,v0={},v1={}", true),
        ("t=1700000000,v0={}", false),
        ("t=1700000000,v0={},v1={0}", false),
        ("t=1700000000,v2={},V1={},v1=={},v1={}=", false),
        ("t=1700000000,v1={0},v1={0}", false),
        ("t=1700000000,t=1700000000,v1={}", false),
        ("t=1700000000;v1={}", false),
        ("v1={}", false),
        ("t=1700000000", false),
    ] {
        let value = value.replace("{}", &stripe_mac("1700000000"));
        let value = value.replace("{0}", &rubbish);
        assert_eq!(stripe_verify(&value).is_ok(), good, "{value}");
    }
    let other = STANDARD.encode([0; 32]);
    for (value, good) in [
        ("v1,{}", true),
        ("v1,{} v1,{0}", true),
        ("v1,{0}  v1,!!!! v1, v1,{} v2,{0}", true),
        ("v2,{} v1,{0} v1,{}", true),
        ("v2,{} v1a,{}", false),
        ("v1,{0} v1,{0}", false),
        ("{}", false),
        ("v1,{},v1,{}", false),
        ("v1={}", false),
    ] {
        let value = value.replace("{0}", &other);
        let verified = standard_verify("msg_1", "1700000000", &value);
        assert_eq!(verified.is_ok(), good, "{value}");
    }
    // More than anybody would send is work for nothing.
    let many = format!(
        "t=1700000000{},v1={}",
        format!(",v1={rubbish}").repeat(64),
        stripe_mac("1700000000")
    );
    assert_eq!(stripe_verify(&many), Err(Refusal::MalformedSignature));
}

#[test]
fn f5_the_signed_time_is_strict_and_bounded_both_ways() {
    let cases = [
        (0, Ok(())),
        (-290, Ok(())),
        (290, Ok(())),
        (-300, Ok(())),
        (300, Ok(())),
        (-301, Err(Refusal::TimestampTooOld)),
        (301, Err(Refusal::TimestampTooNew)),
        (-310, Err(Refusal::TimestampTooOld)),
        (310, Err(Refusal::TimestampTooNew)),
        (-NOW, Err(Refusal::TimestampTooOld)),
        (900_000_000_000 - NOW, Err(Refusal::TimestampTooNew)),
    ];
    for (offset, expected) in cases {
        let time = (NOW + offset).to_string();
        let value = format!("t={time},v1={}", stripe_mac(&time));
        assert_eq!(stripe_verify(&value).map(|_| ()), expected, "{offset}");
        let verified = standard_verify("msg_1", &time, "v1,{}");
        assert_eq!(verified.map(|_| ()), expected, "{offset}");
    }
    for time in [
        "abc",
        "-1",
        "+1700000000",
        "1e9",
        "1700000000.0",
        "17000000000000000000",
        "01700000000",
        "1 700000000",
        "0x6553f100",
        "\u{661}700000000",
        "NaN",
    ] {
        let value = format!("t={time},v1={}", stripe_mac(time));
        let expected = Err(Refusal::MalformedSignature);
        assert_eq!(stripe_verify(&value).map(|_| ()), expected, "{time}");
        let verified = standard_verify("msg_1", time, "v1,{}");
        assert_eq!(verified.map(|_| ()), expected, "{time}");
    }
    let empty = format!("t=,v1={}", stripe_mac(""));
    assert_eq!(stripe_verify(&empty), Err(Refusal::MalformedSignature));
    let empty = standard_verify("msg_1", "", "v1,{}");
    assert_eq!(empty, Err(Refusal::MissingSignature));
    // A wrong signature is told before a wrong time: the time of a stranger proves nothing.
    let value = format!("t=1,v1={}", "0".repeat(64));
    assert_eq!(stripe_verify(&value), Err(Refusal::BadSignature));
}

#[test]
fn f5_milliseconds_have_the_same_window() {
    let provider = hmac(|o| {
        o.signed = "{timestamp}.{body}".to_owned();
        o.timestamp_header = Some("X-Time".to_owned());
        o.timestamp_unit = crate::provider::Unit::Milliseconds;
    })
    .unwrap();
    for (offset, expected) in [
        (-300_000, Ok(())),
        (300_000, Ok(())),
        (-300_001, Err(Refusal::TimestampTooOld)),
        (300_001, Err(Refusal::TimestampTooNew)),
    ] {
        let time = (NOW * 1_000 + offset).to_string();
        let mac = hex_mac(CHOSEN.as_bytes(), &[time.as_bytes(), b".", BODY]);
        let fields = headers([("X-Time", &time), ("X-Signature", &mac)]);
        let verified = verify(&provider, CHOSEN, &fields, BODY);
        assert_eq!(verified.map(|_| ()), expected, "{offset}");
    }
}

#[test]
fn f7_signatures_of_another_length_or_alphabet_are_refused_calmly() {
    let right = hex_mac(CHOSEN.as_bytes(), &[BODY]);
    let accented = format!("{}é", &right[..62]);
    assert_eq!(accented.len(), 64);
    let wrong = "0".repeat(64);
    let longer = format!("{right}0");
    let cases = [
        (&right[..63], Refusal::MalformedSignature),
        (&wrong, Refusal::BadSignature),
        (&longer, Refusal::MalformedSignature),
        (&accented, Refusal::MalformedSignature),
        (&right[..0], Refusal::MalformedSignature),
        (&right[..2], Refusal::MalformedSignature),
    ];
    for (mac, refusal) in cases {
        let value = format!("sha256={mac}");
        let fields = headers([("X-Hub-Signature-256", &value)]);
        let verified = verify(&preset("github"), CHOSEN, &fields, BODY);
        assert_eq!(verified, Err(refusal), "{mac}");
        let value = format!("t=1700000000,v1={mac}");
        assert_eq!(stripe_verify(&value), Err(refusal), "{mac}");
    }
    let upper = format!("sha256={}", right.to_uppercase());
    let fields = headers([("X-Hub-Signature-256", &upper)]);
    assert!(verify(&preset("github"), CHOSEN, &fields, BODY).is_ok());
    for value in [&right, &format!("sha1={right}"), &format!("SHA256={right}")] {
        let fields = headers([("X-Hub-Signature-256", value.as_str())]);
        let verified = verify(&preset("github"), CHOSEN, &fields, BODY);
        assert_eq!(verified, Err(Refusal::MalformedSignature), "{value}");
    }
}

#[test]
fn a_signature_header_that_is_absent_empty_or_repeated_is_refused() {
    for (provider, signing, verifying) in every() {
        let mut types = provider.sample_types();
        let event_type = types.remove(0);
        let payload = provider.sample(event_type, "u1", at(NOW)).unwrap();
        let text = SecretText::new(&signing);
        let signed = provider
            .sign(&payload, event_type, "id1", &text, at(NOW))
            .unwrap();
        let all: Headers = signed.headers.iter().cloned().collect();
        assert!(verify(&provider, &verifying, &all, &signed.body).is_ok());
        assert!(verify(&provider, &verifying, &all, b"{}").is_err());
        let of_check = ["signature", "hmac", "time", "webhook-id"];
        let shop = ["x-shop", "x-id"];
        for (name, value) in &signed.headers {
            let lower = name.to_ascii_lowercase();
            let needed = of_check.iter().any(|word| lower.contains(word))
                || (provider.name() == "hmac" && shop.contains(&lower.as_str()));
            if !needed {
                continue;
            }
            let but = |new: Option<&str>| -> Headers {
                let fields = signed.headers.iter().filter(|(n, _)| n != name).cloned();
                fields
                    .chain(new.map(|value| (name.clone(), value.to_owned())))
                    .collect()
            };
            for absent in [None, Some(""), Some("  ")] {
                let refusal = verify(&provider, &verifying, &but(absent), &signed.body);
                assert_eq!(refusal, Err(Refusal::MissingSignature), "{name}");
            }
            let mut twice = all.clone();
            twice.push(lower, value.as_str());
            let refusal = verify(&provider, &verifying, &twice, &signed.body);
            assert_eq!(refusal, Err(Refusal::MalformedSignature), "{name}");
        }
    }
}

#[test]
fn f14_a_look_alike_secret_has_one_reading_per_preset() {
    // Stripe: the whole text is the key. Standard Webhooks: what follows the prefix, decoded.
    let text = STANDARD_WEBHOOKS;
    let decoded = STANDARD.decode(&text["whsec_".len()..]).unwrap();
    for (key, whole) in [(text.as_bytes(), true), (decoded.as_slice(), false)] {
        let mac = hex_mac(key, &[b"1700000000.", BODY]);
        let value = format!("t=1700000000,v1={mac}");
        let fields = headers([("Stripe-Signature", &value)]);
        let verified = verify(&preset("stripe"), text, &fields, BODY);
        assert_eq!(verified.is_ok(), whole);
        let mac = STANDARD.encode(Hash::Sha256.hmac(key, &[b"msg_1.1700000000.", BODY]));
        let value = format!("v1,{mac}");
        let fields = headers([
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", "1700000000"),
            ("webhook-signature", &value),
        ]);
        let verified = verify(&preset("standard-webhooks"), text, &fields, BODY);
        assert_eq!(verified.is_ok(), !whole);
    }
}

#[test]
fn f15_every_living_secret_is_tried_and_the_label_is_told() {
    let provider = preset("stripe");
    let living = |label: &str, text: &str, until: Option<i64>| Secret {
        label: label.to_owned(),
        key: text.as_bytes().to_vec(),
        until: until.map(at),
    };
    let secrets = [
        living("old", "whsec_old_9f3kQ0zLmT", Some(NOW + 60)),
        living("new", "whsec_new_7Hd2PpWxY1", None),
    ];
    let label = |signer: &str, now: i64| {
        let text = SecretText::new(signer);
        let signed = provider.sign(BODY, "", "", &text, at(now)).unwrap();
        let fields: Headers = signed.headers.into_iter().collect();
        provider
            .verify(&request(&fields, BODY), &secrets, at(now))
            .map(|verified| verified.secret_label)
    };
    let (old, new) = ("whsec_old_9f3kQ0zLmT", "whsec_new_7Hd2PpWxY1");
    assert_eq!(label(old, NOW), Ok("old".to_owned()));
    assert_eq!(label(new, NOW), Ok("new".to_owned()));
    assert_eq!(label(old, NOW + 59), Ok("old".to_owned()));
    assert_eq!(label(old, NOW + 60), Err(Refusal::BadSignature));
    assert_eq!(label(new, NOW + 60), Ok("new".to_owned()));
    assert_eq!(
        label("whsec_other_1234567", NOW),
        Err(Refusal::BadSignature)
    );
    let fields = headers([(
        "Stripe-Signature",
        &format!("t={NOW},v1={}", stripe_mac("1700000000")),
    )]);
    let nobody = provider.verify(&request(&fields, BODY), &[], at(NOW));
    assert_eq!(nobody, Err(Refusal::BadSignature));
}

#[test]
fn f81_only_the_public_url_is_hashed() {
    let provider = hmac(|o| o.signed = "{url}{body}".to_owned()).unwrap();
    for (url, good) in [
        ("https://hooks.example.com/webhooks/shop?a=1", true),
        ("http://hooks.example.com/webhooks/shop?a=1", false),
        ("https://hooks.example.com/webhooks/shop", false),
        ("https://hooks.example.com/webhooks/shop?a=1/", false),
        ("http://10.0.0.7:8080/webhooks/x", false),
        ("/webhooks/x", false),
        ("", false),
    ] {
        let mac = hex_mac(CHOSEN.as_bytes(), &[url.as_bytes(), BODY]);
        let fields = headers([
            ("Host", "10.0.0.7:8080"),
            ("X-Forwarded-Host", "hooks.example.com"),
            ("X-Signature", &mac),
        ]);
        let verified = verify(&provider, CHOSEN, &fields, BODY);
        assert_eq!(verified.is_ok(), good, "{url}");
    }
    let without = Options {
        hmac: Some(HmacOptions {
            header: "X-Signature".to_owned(),
            signed: "{url}{body}".to_owned(),
            ..HmacOptions::default()
        }),
        ..Options::default()
    };
    let error = build("hmac", &without).unwrap_err().to_string();
    assert!(error.contains("public_url"), "{error}");
}

#[test]
fn the_sha1_header_is_never_accepted() {
    let sha1 = hex::encode(Hash::Sha1.hmac(CHOSEN.as_bytes(), &[BODY]));
    let value = format!("sha1={sha1}");
    for (name, refusal) in [
        ("X-Hub-Signature", Refusal::MissingSignature),
        ("X-Hub-Signature-256", Refusal::MalformedSignature),
    ] {
        let fields = headers([(name, &value), ("X-GitHub-Delivery", "1")]);
        let verified = verify(&preset("github"), CHOSEN, &fields, BODY);
        assert_eq!(verified, Err(refusal), "{name}");
    }
}

#[test]
fn a_public_key_is_never_a_mac_key() {
    let provider = dialect("standard-webhooks", "asymmetric");
    let public = ed25519_dalek::SigningKey::from_bytes(&SEED).verifying_key();
    let mac = Hash::Sha256.hmac(public.as_bytes(), &[b"msg_1.1700000000.", BODY]);
    let mac = STANDARD.encode(mac);
    let text = format!("whpk_{}", STANDARD.encode(public.as_bytes()));
    for value in [format!("v1,{mac}"), format!("v1a,{mac}")] {
        let fields = headers([
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", "1700000000"),
            ("webhook-signature", &value),
        ]);
        let verified = verify(&provider, &text, &fields, BODY);
        assert_eq!(verified, Err(Refusal::MalformedSignature), "{value}");
    }
}

#[test]
fn what_is_signed_can_be_cut_in_one_way_only() {
    // An id with the separator could lend its end to the time or the body.
    for id in ["msg.1", ".", "msg_1."] {
        let verified = standard_verify(id, "1700000000", "v1,{}");
        assert_eq!(verified, Err(Refusal::MalformedSignature), "{id}");
    }
    assert!(standard_verify("msg-1_%:/", "1700000000", "v1,{}").is_ok());
    // "order1" + "0" + time and "order10" + time are the same bytes.
    let timed = |signed: &str| {
        hmac(|o| {
            o.signed = signed.to_owned();
            o.timestamp_header = Some("X-Time".to_owned());
            o.event_id = Some(EventId::One("header:X-Id".to_owned()));
        })
    };
    let provider = timed("{id}{timestamp}{body}").unwrap();
    let mac = hex_mac(CHOSEN.as_bytes(), &[b"order10", b"1700000000", BODY]);
    for (id, time, good) in [
        ("order10", "1700000000", true),
        ("order1", "01700000000", false),
        ("order101", "700000000", false),
    ] {
        let fields = headers([("X-Id", id), ("X-Time", time), ("X-Signature", &mac)]);
        let verified = verify(&provider, CHOSEN, &fields, BODY);
        assert_eq!(verified.is_ok(), good, "{id}");
    }
    for open in [
        "{timestamp}{id}{body}",
        "{body}{id}{timestamp}",
        "{timestamp}.{header:x-id}{body}{id}",
        "{timestamp}.{body}{header:X-ID}",
        "{id}{header:X-Shop}{timestamp}{body}",
    ] {
        let error = timed(open).unwrap_err().to_string();
        assert!(error.contains("another id"), "{open}: {error}");
    }
    // Separators before and behind, also of several bytes.
    for (signed, id, good) in [
        ("{timestamp}|{body}|{id}", "a|b", false),
        ("{timestamp}|{body}|{id}", "ab", true),
        ("{timestamp}|{id}--{body}", "a--b", false),
        ("{timestamp}|{id}--{body}", "a-", false),
        ("{timestamp}|{id}--{body}", "a-b", true),
        ("{body}--{id}|{timestamp}", "-a", false),
        ("{body}--{id}|{timestamp}", "a-", true),
        ("id:{id}|{timestamp}{body}", "id:7", true),
    ] {
        let provider = timed(signed).unwrap();
        let text = SecretText::new(CHOSEN);
        let request = provider.sign(BODY, "", id, &text, at(NOW));
        assert_eq!(request.is_ok(), good, "{signed} with {id}");
    }
}
