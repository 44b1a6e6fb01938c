//! Properties that hold for every preset.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::domain::{Digest, EventKey, Reading};

fn is_adyen_standard(provider: &Bound) -> bool {
    provider.recipe().starts_with("adyen: json:/pspReference")
}

/// What must hold of every item, whatever the body.
fn is_sound(provider: &Bound, item: &Item, body: &[u8]) -> Result<(), TestCaseError> {
    let bytes = &body[item.range.clone()];
    prop_assert_eq!(item.raw_digest, Digest::of(bytes));
    prop_assert!(EventKey::stored(item.key.as_str()).is_ok());
    prop_assert_eq!(
        item.canonical_digest,
        provider.comparable(item.digest_rule, bytes)
    );
    Ok(())
}

#[test]
fn every_sample_signs_verifies_and_is_one_event() {
    for (provider, signing, verifying) in every() {
        let types = provider.sample_types();
        assert!(!types.is_empty(), "{provider:?}");
        for event_type in types {
            let payload = provider.sample(event_type, "u\"1", at(NOW)).unwrap();
            let signed = provider
                .sign(
                    &payload,
                    event_type,
                    "id1",
                    &SecretText::new(&signing),
                    at(NOW),
                )
                .unwrap();
            let headers: Headers = signed.headers.into_iter().collect();
            let verified = verify(&provider, &verifying, &headers, &signed.body).unwrap();
            assert!(verified.refused_items.is_empty());
            let items = provider.unwrap(&request(&headers, &signed.body), &verified);
            let [item] = items.as_slice() else {
                panic!("{event_type}: {items:?}");
            };
            assert_eq!(item.event_type.as_deref(), Some(event_type));
            match event_type {
                "ping" => assert!(matches!(item.reading, Reading::Ignored(_))),
                _ => assert_eq!(item.reading, Reading::Event, "{event_type}"),
            }
            assert!(
                item.entity.is_some() || provider.name() != "stripe",
                "{event_type}"
            );
            is_sound(&provider, item, &signed.body).unwrap();
            // Two samples are two events.
            let other = provider.sample(event_type, "u2", at(NOW)).unwrap();
            assert_ne!(payload, other, "{event_type}");
        }
        let unknown = provider.sample("no.such.type", "u", at(NOW));
        let any = matches!(provider.name(), "standard-webhooks" | "hmac");
        assert_eq!(unknown.is_some(), any, "{provider:?}");
    }
}

/// Header values: any bytes, and texts near to what is expected.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..80),
        "(t=|v1=|v1,|v1a,|sha256=|[0-9a-f]{64}|[A-Za-z0-9+/=]{44}|[ ,;=.]|1700000000){0,6}"
            .prop_map(String::into_bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_requests_are_refused_without_a_panic(
        values in vec(value(), 16), repeats in any::<u16>(), body in vec(any::<u8>(), 0..120)
    ) {
        for (provider, _, verifying) in every() {
            let mut headers = Headers::default();
            let mut values = values.iter().cycle();
            for (index, name) in provider.stored_headers().into_iter().enumerate() {
                headers.push(name.clone(), values.next().unwrap().as_slice());
                if repeats >> (index % 16) & 7 == 7 {
                    headers.push(name, values.next().unwrap().as_slice());
                }
            }
            prop_assert!(verify(&provider, &verifying, &headers, &body).is_err());
            // Reading never fails either, whoever vouched for the request.
            let verified = Verified {
                secret_label: "main".to_owned(),
                refused_items: Vec::new(),
                items: Vec::new(),
            };
            for item in provider.unwrap(&request(&headers, &body), &verified) {
                is_sound(&provider, &item, &body)?;
            }
        }
    }

    #[test]
    fn any_signed_body_is_exactly_one_item(body in vec(any::<u8>(), 0..120), text in ".{0,80}") {
        for body in [body.as_slice(), text.as_bytes()] {
            for (provider, signing, verifying) in every() {
                if is_adyen_standard(&provider) {
                    continue;
                }
                let (headers, body) = sign(&provider, &signing, "id1", body);
                let verified = verify(&provider, &verifying, &headers, &body).unwrap();
                let items = provider.unwrap(&request(&headers, &body), &verified);
                prop_assert_eq!(items.len(), 1);
                prop_assert_eq!(items[0].range.clone(), 0..body.len());
                is_sound(&provider, &items[0], &body)?;
            }
        }
    }

    #[test]
    fn a_changed_sample_is_refused_or_says_the_same(place in any::<Index>(), byte in any::<u8>()) {
        for (provider, signing, verifying) in every() {
            let event_type = provider.sample_types()[0];
            let payload = provider.sample(event_type, "u1", at(NOW)).unwrap();
            let (headers, signed) = sign(&provider, &signing, "id1", &payload);
            let read = |body: &[u8]| {
                let verified = verify(&provider, &verifying, &headers, body).ok()?;
                Some(provider.unwrap(&request(&headers, body), &verified))
            };
            let mut changed = signed.clone();
            let at = place.index(changed.len());
            changed[at] = byte;
            match read(&changed) {
                None => {}
                // Adyen signs fields: a byte elsewhere may differ, the key may not.
                Some(items) if is_adyen_standard(&provider) => {
                    prop_assert_eq!(&items[0].key, &read(&signed).unwrap()[0].key);
                }
                Some(_) => prop_assert_eq!(&changed, &signed),
            }
        }
    }

    #[test]
    fn a_changed_sample_that_is_signed_anew_never_panics(place in any::<Index>(), bytes in vec(any::<u8>(), 0..4)) {
        for (provider, signing, verifying) in every() {
            let event_type = provider.sample_types()[0];
            let mut payload = provider.sample(event_type, "u1", at(NOW)).unwrap();
            let at_byte = place.index(payload.len());
            payload.splice(at_byte..=at_byte, bytes.clone());
            let text = SecretText::new(&signing);
            let Ok(signed) = provider.sign(&payload, event_type, "id1", &text, at(NOW)) else {
                continue;
            };
            let headers: Headers = signed.headers.into_iter().collect();
            if let Ok(verified) = verify(&provider, &verifying, &headers, &signed.body) {
                for item in provider.unwrap(&request(&headers, &signed.body), &verified) {
                    is_sound(&provider, &item, &signed.body)?;
                }
            }
        }
    }
}
