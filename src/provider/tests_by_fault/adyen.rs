//! Adyen: signatures inside the items, keys of several fields, and the header dialect.

use super::*;
use crate::domain::{Mode, Reading};

/// One item with these members, unsigned.
fn notification(members: &str) -> String {
    format!(
        r#"{{"NotificationRequestItem":{{"merchantAccountCode":"Shop","amount":{{"value":4200,"currency":"EUR"}},{members}}}}}"#
    )
}

fn authorisation(psp: &str, success: &str) -> String {
    notification(&format!(
        r#""pspReference":"{psp}","merchantReference":"order-1","eventCode":"AUTHORISATION","success":"{success}""#
    ))
}

fn body(items: &[String]) -> String {
    format!(
        r#"{{"live":"true","notificationItems":[{}]}}"#,
        items.join(",")
    )
}

fn signed(items: &[String]) -> String {
    let (_, bytes) = sign(&preset("adyen"), ADYEN, "", body(items).as_bytes());
    String::from_utf8(bytes).unwrap()
}

fn check(body: &str) -> Result<Verified, Refusal> {
    verify(
        &preset("adyen"),
        ADYEN,
        &Headers::default(),
        body.as_bytes(),
    )
}

fn items(body: &str) -> Vec<Item> {
    let verified = check(body).unwrap();
    let headers = Headers::default();
    preset("adyen").unwrap(&request(&headers, body.as_bytes()), &verified)
}

fn key_of(members: &str) -> String {
    let body = signed(&[notification(members)]);
    items(&body).remove(0).key.to_string()
}

#[test]
fn f26_every_item_stands_for_itself() {
    let all = signed(&[
        authorisation("psp1", "true"),
        authorisation("psp2", "true"),
        authorisation("psp3", "true"),
    ]);
    assert_eq!(items(&all).len(), 3);
    for (altered, left) in [("psp2", ["psp1", "psp3"]), ("psp1", ["psp2", "psp3"])] {
        let altered = all.replace(altered, "pspX");
        let index = usize::from(left[0] == "psp1");
        let verified = check(&altered).unwrap();
        assert_eq!(verified.refused_items, [(index, Refusal::BadSignature)]);
        assert_eq!(verified.secret_label, "main");
        let items = items(&altered);
        for (item, psp) in items.iter().zip(left) {
            assert_eq!(item.key.as_str(), format!("{psp}:AUTHORISATION:true"));
            assert!(altered[item.range.clone()].contains(psp));
        }
        assert_eq!(items.len(), 2);
    }
    let none = all.replace(":4200", ":4201");
    assert_eq!(check(&none), Err(Refusal::BadSignature));
}

#[test]
fn every_signed_field_counts_and_no_other() {
    let members = r#""pspReference":"p","originalReference":"o","merchantReference":"m","eventCode":"CAPTURE","success":"true","reason":"r","eventDate":"2023-11-14T22:13:20+01:00","paymentMethod":"visa""#;
    let good = signed(&[notification(members)]);
    for (field, other) in [
        (r#""pspReference":"p""#, r#""pspReference":"P""#),
        (r#""pspReference":"p""#, r#""pspReference":"p ""#),
        (r#""originalReference":"o""#, r#""originalReference":null"#),
        (r#""Shop""#, r#""shop""#),
        (r#""merchantReference":"m""#, r#""merchantReference":" m""#),
        (":4200", ":42000"),
        (":4200", ":4200.0"),
        ("EUR", "USD"),
        ("CAPTURE", "REFUND"),
        (r#""success":"true""#, r#""success":"false""#),
        (r#""success":"true""#, r#""success":"True""#),
    ] {
        assert!(good.contains(field));
        let altered = good.replace(field, other);
        assert_eq!(check(&altered), Err(Refusal::BadSignature), "{other}");
    }
    for (field, other) in [
        (r#""live":"true""#, r#""live":"false""#),
        (r#""reason":"r""#, r#""reason":"x""#),
        ("visa", "mc"),
        (r#""success":"true""#, r#""success":true"#),
        (":4200", r#":"4200""#),
    ] {
        let key = |body: &str| items(body).remove(0).key;
        assert_eq!(key(&good), key(&good.replace(field, other)), "{other}");
    }
}

#[test]
fn success_and_the_original_reference_are_part_of_the_key() {
    let key = |original: &str, success: &str| {
        key_of(&format!(
            r#""pspReference":"p%1","eventCode":"CAPTURE","success":{success},"merchantReference":"a:b"{original}"#
        ))
    };
    let original = r#","originalReference":"o%3A1""#;
    for (original, success, expected) in [
        ("", r#""true""#, "p%251:CAPTURE:true"),
        ("", r#""false""#, "p%251:CAPTURE:false"),
        ("", "true", "p%251:CAPTURE:true"),
        ("", r#""""#, "p%251:CAPTURE:"),
        ("", "null", "p%251:CAPTURE:"),
        (original, r#""true""#, "p%251:CAPTURE:true:original=o%253A1"),
        (
            r#","originalReference":"""#,
            r#""true""#,
            "p%251:CAPTURE:true",
        ),
        (
            r#","originalReference":null"#,
            r#""true""#,
            "p%251:CAPTURE:true",
        ),
    ] {
        assert_eq!(key(original, success), expected);
    }
}

#[test]
fn a_text_that_could_be_cut_in_two_ways_is_refused() {
    // Only the merchant's own reference may hold the separator.
    let colons = r#""pspReference":"p","merchantReference":"a:b:c\\","eventCode":"CAPTURE","success":"true""#;
    assert!(check(&signed(&[notification(colons)])).is_ok());
    let good = signed(&[notification(
        r#""pspReference":"p","originalReference":"o","merchantReference":"m","eventCode":"CAPTURE","success":"true""#,
    )]);
    for (field, other) in [
        (
            r#""pspReference":"p","originalReference":"o""#,
            r#""pspReference":"p:o","originalReference":"""#,
        ),
        (r#""Shop""#, r#""Shop:m""#),
        (r#""eventCode":"CAPTURE""#, r#""eventCode":"CAPTURE:true""#),
        (r#""pspReference":"p""#, r#""pspReference":["p"]"#),
        // One reader takes the first, another the last.
        (
            r#""pspReference":"p""#,
            r#""pspReference":"p","pspReference":"p""#,
        ),
        (r":4200", r#":4200,"value":9"#),
    ] {
        assert!(good.contains(field), "{field}");
        let altered = good.replace(field, other);
        assert_eq!(check(&altered), Err(Refusal::MalformedBody), "{other}");
    }
}

#[test]
fn bodies_without_items_or_signatures_are_refused() {
    let good = signed(&[authorisation("p", "true")]);
    let mac = good.split("hmacSignature\":\"").nth(1).unwrap();
    let mac = mac.split('"').next().unwrap();
    for (altered, refusal) in [
        (String::new(), Refusal::MalformedBody),
        ("[]".to_owned(), Refusal::MalformedBody),
        ("{}".to_owned(), Refusal::MalformedBody),
        (
            r#"{"notificationItems":{}}"#.to_owned(),
            Refusal::MalformedBody,
        ),
        (
            r#"{"notificationItems":[]}"#.to_owned(),
            Refusal::MissingSignature,
        ),
        (
            r#"{"notificationItems":[1]}"#.to_owned(),
            Refusal::MalformedBody,
        ),
        (
            body(&[authorisation("p", "true")]),
            Refusal::MissingSignature,
        ),
        (good.replace(mac, ""), Refusal::MissingSignature),
        (
            good.replace(&format!("\"{mac}\""), "null"),
            Refusal::MissingSignature,
        ),
        (
            good.replace(&format!("\"{mac}\""), "7"),
            Refusal::MalformedSignature,
        ),
        (good.replace(mac, &mac[..43]), Refusal::MalformedSignature),
        (
            good.replace(mac, &format!("{mac}=")),
            Refusal::MalformedSignature,
        ),
        (
            good.replace(mac, &format!(" {mac}")),
            Refusal::MalformedSignature,
        ),
        (
            good.replace(mac, &STANDARD.encode([0; 32])),
            Refusal::BadSignature,
        ),
        (
            good.replace(mac, &STANDARD.encode([0; 33])),
            Refusal::MalformedSignature,
        ),
        (
            good.replace("\"live\"", "\"notificationItems\":[],\"live\""),
            Refusal::MalformedBody,
        ),
    ] {
        assert_eq!(check(&altered), Err(refusal), "{altered}");
    }
    // A JSON escape inside the signature is the same text.
    let escaped = good.replace(mac, &mac.replace('=', "\\u003d").replace('/', "\\/"));
    assert!(check(&escaped).is_ok());
}

#[test]
fn an_item_without_reference_is_unreadable() {
    for members in [
        r#""eventCode":"CAPTURE","success":"true""#,
        r#""pspReference":"p","success":"true""#,
        r#""pspReference":"p\u0000","eventCode":"CAPTURE","success":"true""#,
    ] {
        let body = signed(&[notification(members), authorisation("p2", "true")]);
        let items = items(&body);
        assert!(
            matches!(items[0].reading, Reading::Unreadable(_)),
            "{members}"
        );
        assert!(items[0].key.as_str().starts_with("sha256:"));
        assert_eq!(items[1].key.as_str(), "p2:AUTHORISATION:true");
    }
}

#[test]
fn the_unsigned_mode_is_told_and_never_part_of_the_key() {
    let good = signed(&[authorisation("p", "true")]);
    for (live, mode) in [
        (r#""live":"true""#, Mode::Live),
        (r#""live":true"#, Mode::Live),
        (r#""live":"false""#, Mode::Test),
        (r#""live":"yes""#, Mode::Unknown),
        (r#""x":1"#, Mode::Unknown),
        (r#""live":"true","live":"true""#, Mode::Unknown),
    ] {
        let item = items(&good.replace(r#""live":"true""#, live)).remove(0);
        assert_eq!(item.mode, Some(mode), "{live}");
        assert_eq!(item.key.as_str(), "p:AUTHORISATION:true");
    }
}

#[test]
fn f25_a_new_signature_over_the_same_item_is_no_other_content() {
    let old = signed(&[authorisation("p", "true")]);
    let other = "DFB1EB5485895CFA84146406857104ABB4CBCABDC8AAF103A624C8F6A3EAAB00";
    let (_, new) = sign(&preset("adyen"), other, "", old.as_bytes());
    let verified = verify(&preset("adyen"), other, &Headers::default(), &new).unwrap();
    let (old, new) = (items(&old).remove(0), &verified.items[0]);
    assert_ne!(old.raw_digest, new.raw_digest);
    assert_eq!(old.canonical_digest, new.canonical_digest);
    assert!(old.canonical_digest.is_some());
}

#[test]
fn platform_notifications_are_named_by_type_object_and_time() {
    let provider = dialect("adyen", "platform");
    let read = |body: &str| item(&provider, ADYEN, "", body.as_bytes());
    let transfer = |rest: &str| {
        read(&format!(
            r#"{{"type":"balancePlatform.transfer.updated","environment":"live","timestamp":"2024-01-01T10:00:00+01:00","data":{{"id":"TR1"{rest}}}}}"#
        ))
    };
    let first = transfer(r#","sequenceNumber":1"#);
    let start = "balancePlatform.transfer.updated:TR1:2024-01-01T10%3A00%3A00+01%3A00";
    assert_eq!(first.key.as_str(), format!("{start}:seq=1"));
    assert_eq!(first.entity.as_deref(), Some("TR1"));
    assert_eq!(first.mode, Some(Mode::Live));
    assert_eq!(transfer("").key.as_str(), start);
    let created = read(
        r#"{"type":"merchant.created","environment":"test","createdAt":"01-01-2024","data":{"merchantId":"M1"}}"#,
    );
    assert!(created.key.as_str().starts_with("content:"));
    assert!(created.key.as_str().ends_with(":mode=test"));
    assert_eq!(created.entity.as_deref(), Some("M1"));
}
