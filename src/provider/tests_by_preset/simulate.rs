//! Signing and samples, and requests made to hurt.

use super::*;

use proptest::prelude::*;

#[test]
fn every_sample_of_every_preset_verifies_and_reads() {
    for (provider, signing, verifying) in all() {
        let types = provider.sample_types();
        assert!(types.len() >= 2, "{provider:?}");
        for event_type in types {
            let make = |unique| provider.sample(event_type, unique, now()).unwrap();
            let payload = make("u1");
            assert_ne!(payload, make("u2"));
            let signed = provider
                .sign(
                    &payload,
                    event_type,
                    "msg_1",
                    &SecretText::new(signing),
                    now(),
                )
                .unwrap();
            let headers: Headers = signed.headers.into_iter().collect();
            let request = request(&headers, &signed.body);
            let secrets = [secret(provider.as_ref(), "a", verifying)];
            let verified = provider.verify(&request, &secrets, now()).unwrap();
            assert!(verified.refused_items.is_empty());
            let items = provider.unwrap(&request, &verified);
            let [item] = items.as_slice() else {
                panic!("{event_type}: {items:?}");
            };
            if event_type == "ping" {
                assert!(matches!(item.reading, Reading::Ignored(_)));
            } else {
                assert_eq!(item.reading, Reading::Event, "{event_type}");
            }
            let named = !provider.recipe().contains(": content by rule");
            assert!(!named || item.event_type.as_deref() == Some(event_type));
            assert_eq!(
                provider.comparable(item.digest_rule, &signed.body[item.range.clone()]),
                item.canonical_digest
            );
            assert_ne!(item.mode, Some(Mode::Unknown));
        }
        assert!(provider.sample_types().len() < 20);
    }
    assert_eq!(preset("stripe").sample("no.such.type", "u", now()), None);
}

#[test]
fn samples_are_json_whatever_is_put_in() {
    for (provider, ..) in all() {
        for event_type in provider.sample_types() {
            let payload = provider.sample(event_type, "a\"\\\n\0é", now()).unwrap();
            assert!(serde_json::from_slice::<serde_json::Value>(&payload).is_ok());
        }
    }
    let any = preset("standard-webhooks")
        .sample("a\"b", "u", now())
        .unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&any).is_ok());
}

#[test]
fn adyen_signs_in_place_wherever_the_signature_stands() {
    let adyen = preset("adyen");
    let key = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
    let secrets = [secret(adyen.as_ref(), "a", key)];
    let item = |data: &str| {
        format!(
            r#"{{"NotificationRequestItem":{{ {data}"pspReference":"p1","eventCode":"E","success":true,"amount":{{"value":0,"currency":"EUR"}}}}}}"#
        )
    };
    let datas = [
        "",
        r#""additionalData":{},"#,
        r#""additionalData":{"hmacSignature":null},"#,
        r#""additionalData":{"a":1,"hmacSignature":"old"},"#,
        r#""additionalData":{"a":"}"},"#,
    ];
    let items: Vec<_> = datas.iter().map(|data| item(data)).collect();
    let payload = format!(
        r#"{{"live":true,"notificationItems":[{}]}}"#,
        items.join(" , ")
    );
    let signed = adyen
        .sign(payload.as_bytes(), "E", "", &SecretText::new(key), now())
        .unwrap();
    let headers: Headers = signed.headers.into_iter().collect();
    let request = request(&headers, &signed.body);
    let verified = adyen.verify(&request, &secrets, now()).unwrap();
    assert!(verified.refused_items.is_empty(), "{verified:?}");
    let items = adyen.unwrap(&request, &verified);
    assert_eq!(items.len(), datas.len());
    assert!(items.iter().all(|item| item.key.as_str() == "p1:E:true"));
    assert!(items.iter().all(|item| item.mode == Some(Mode::Live)));
    for bad in [
        "{}",
        "no",
        r#"{"notificationItems":[{}]}"#,
        r#"{"notificationItems":[]}"#,
    ] {
        let refused = adyen.sign(bad.as_bytes(), "E", "", &SecretText::new(key), now());
        assert!(refused.is_err(), "{bad}");
    }
}

proptest! {
    // Every preset runs in each case.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_requests_never_panic_and_never_verify(
        body in prop::collection::vec(any::<u8>(), 0..200),
        json in "[\\[\\]{}\",:0-9a-z.\\\\u-]{0,60}",
        value in prop::collection::vec(any::<u8>(), 0..80),
        list in "(t=[0-9]{0,13}|v1=[0-9a-f]{0,70}|v1,[A-Za-z0-9+/=]{0,50}|[,= .]){0,6}",
    ) {
        for (provider, _, verifying) in all() {
            let secrets = [secret(provider.as_ref(), "a", verifying)];
            for value in [value.as_slice(), list.as_bytes(), &[b"sha256=", list.as_bytes()].concat()] {
                let mut headers = Headers::default();
                for name in provider.stored_headers() {
                    headers.push(name, value);
                }
                for body in [body.as_slice(), json.as_bytes()] {
                    let request = request(&headers, body);
                    prop_assert!(provider.verify(&request, &secrets, now()).is_err());
                    // Reading is total too, whatever got through.
                    let verified = crate::provider::Verified {
                        secret_label: "a".into(),
                        refused_items: vec![(0, Refusal::BadSignature)],
                        items: Vec::new(),
                    };
                    for item in provider.unwrap(&request, &verified) {
                        prop_assert!(item.range.end <= body.len());
                        let _ = provider.comparable(item.digest_rule, body);
                    }
                }
            }
        }
    }

    #[test]
    fn whatever_is_signed_verifies_and_keeps_its_digests(
        body in prop::collection::vec(any::<u8>(), 0..200), age in -300_i64..=300
    ) {
        for (provider, signing, verifying) in all() {
            let Ok(signed) = provider.sign(&body, "t", "msg_1", &SecretText::new(signing), now()) else {
                continue; // Adyen signs notifications only.
            };
            let headers: Headers = signed.headers.into_iter().collect();
            let request = request(&headers, &signed.body);
            let secrets = [secret(provider.as_ref(), "a", verifying)];
            let verified = provider.verify(&request, &secrets, after(age));
            prop_assert!(verified.is_ok());
            let items = provider.unwrap(&request, &verified.unwrap());
            prop_assert_eq!(items.len(), 1);
            prop_assert_eq!(items[0].raw_digest, Digest::of(&body));
        }
    }
}
