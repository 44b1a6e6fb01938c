//! What verifies and what does not.

use super::*;

#[test]
fn f4_one_good_signature_among_several_is_enough() {
    let body = b"{\"id\":\"evt_1\"}";
    let good = stripe_mac("1764579600", body);
    let bad = "0".repeat(64);
    let accepted = [
        format!("t=1764579600,v1={good}"),
        format!("t=1764579600,v1={good},v1={bad}"),
        format!("t=1764579600,v1={bad},v1={good}"),
        format!("v1={bad},v1={good},t=1764579600"),
        format!("t=1764579600,v1=rubbish,v0,=,v1={good},,v1=é,v1"),
        format!("t=1764579600, v1={good}, v0={bad}"),
        format!("t=1764579600,v1={}", good.to_uppercase()),
    ];
    for header in accepted {
        assert_eq!(
            stripe_verify(&header, body, now()),
            Ok("a".into()),
            "{header}"
        );
    }
    let refused = [
        (
            format!("t=1764579600,v1={bad},v1={bad}"),
            Refusal::BadSignature,
        ),
        (
            format!("t=1764579600,v0={good}"),
            Refusal::MalformedSignature,
        ),
        (
            format!("t=1764579600,v2={good},v10={good}"),
            Refusal::MalformedSignature,
        ),
        (
            format!("t=1764579600,V1={good}"),
            Refusal::MalformedSignature,
        ),
        (
            format!("t=1764579600,t=1764579600,v1={good}"),
            Refusal::MalformedSignature,
        ),
        (format!("v1={good}"), Refusal::MalformedSignature),
        (
            format!(
                "t=1764579600,{}",
                "v1=".to_owned() + &vec![bad.clone(); 65].join(",v1=")
            ),
            Refusal::MalformedSignature,
        ),
        (String::new(), Refusal::MissingSignature),
        (" ".into(), Refusal::MissingSignature),
    ];
    for (header, refusal) in refused {
        assert_eq!(
            stripe_verify(&header, body, now()),
            Err(refusal),
            "{header}"
        );
    }
}

#[test]
fn f5_the_window_is_inclusive_and_holds_both_ways() {
    let body = b"{\"id\":\"evt_1\"}";
    let header = format!("t=1764579600,v1={}", stripe_mac("1764579600", body));
    for (age, expected) in [
        (0, Ok(())),
        (290, Ok(())),
        (300, Ok(())),
        (301, Err(Refusal::TimestampTooOld)),
        (310, Err(Refusal::TimestampTooOld)),
        (-290, Ok(())),
        (-300, Ok(())),
        (-301, Err(Refusal::TimestampTooNew)),
        (-310, Err(Refusal::TimestampTooNew)),
    ] {
        let verified = stripe_verify(&header, body, after(age)).map(|_| ());
        assert_eq!(verified, expected, "{age}");
    }
    // The stamp is a whole second, so a fraction of one does not count against it.
    let almost = now() + SignedDuration::from_millis(300_999);
    assert!(stripe_verify(&header, body, almost).is_ok());
}

#[test]
fn f5_a_time_is_one_to_twelve_digits_although_the_mac_over_it_is_right() {
    let body = b"{\"id\":\"evt_1\"}";
    for time in [
        "",
        "abc",
        "-1",
        "+1764579600",
        "1e9",
        "1764579600.0",
        "0x69",
        "1764579600 ",
        "１７６４",
        "17645796000000000000",
        "1764579600000",
    ] {
        let header = format!("t={time},v1={}", stripe_mac(time, body));
        let refused = stripe_verify(&header, body, now()).unwrap_err();
        let trimmed = time.ends_with(' ') && refused == Refusal::BadSignature;
        assert!(
            trimmed || refused == Refusal::MalformedSignature,
            "{time}: {refused:?}"
        );
    }
    for (time, refusal) in [
        ("0", Refusal::TimestampTooOld),
        ("999999999999", Refusal::TimestampTooNew),
    ] {
        let header = format!("t={time},v1={}", stripe_mac(time, body));
        assert_eq!(stripe_verify(&header, body, now()), Err(refusal));
    }
    let padded = format!("t=001764579600,v1={}", stripe_mac("001764579600", body));
    // A leading zero is another spelling of the same time, which could move bytes between a signed
    // id and the time behind it.
    assert_eq!(
        stripe_verify(&padded, body, now()),
        Err(Refusal::MalformedSignature)
    );
}

#[test]
fn f7_signatures_of_other_lengths_are_no_match_and_no_panic() {
    let body = b"{}";
    let good = stripe_mac("1764579600", body);
    let accented = format!("é{}", &good[2..]);
    for bad in [
        &good[..63],
        &good[1..],
        &format!("{good}0"),
        &accented,
        "é",
        &"0".repeat(64),
    ] {
        let header = format!("t=1764579600,v1={bad}");
        assert!(stripe_verify(&header, body, now()).is_err(), "{bad}");
    }
}

#[test]
fn f7_header_bytes_that_are_no_text_are_refused() {
    let stripe = preset("stripe");
    let secrets = [secret(stripe.as_ref(), "a", STRIPE)];
    for value in [
        &b"\xff"[..],
        b"t=\xff,v1=\xfe",
        b"t=1764579600,v1=\0",
        b"=,=,=",
    ] {
        let mut headers = Headers::default();
        headers.push("Stripe-Signature", value);
        let refused = stripe.verify(&request(&headers, b"{}"), &secrets, now());
        assert_eq!(refused, Err(Refusal::MalformedSignature));
    }
    let mut headers = Headers::default();
    headers.push("Stripe-Signature", "t=1,v1=00");
    headers.push("stripe-signature", "t=1,v1=00");
    let refused = stripe.verify(&request(&headers, b"{}"), &secrets, now());
    assert_eq!(refused, Err(Refusal::MalformedSignature));
}

#[test]
fn f15_every_living_secret_is_tried_and_the_label_that_matched_is_told() {
    let (provider, signing, _) = all().remove(0);
    let signed = provider
        .sign(
            b"{\"id\":\"evt_1\"}",
            "x",
            "y",
            &SecretText::new(signing),
            now(),
        )
        .unwrap();
    let headers: Headers = signed.headers.into_iter().collect();
    let new = secret(provider.as_ref(), "2026-12", "whsec_aNewerSecretOfOurs77");
    let old = Secret {
        until: Some(after(60)),
        ..secret(provider.as_ref(), "2026-11", STRIPE)
    };
    let secrets = [new, old];
    let verify = |at| {
        provider
            .verify(&request(&headers, &signed.body), &secrets, at)
            .map(|verified| verified.secret_label)
    };
    assert_eq!(verify(now()), Ok("2026-11".into()));
    assert_eq!(verify(after(59)), Ok("2026-11".into()));
    assert_eq!(verify(after(60)), Err(Refusal::BadSignature));
}

#[test]
fn adyen_bodies_that_cannot_be_split_are_refused() {
    let adyen = preset("adyen");
    let key = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
    let secrets = [secret(adyen.as_ref(), "a", key)];
    for (body, refusal) in [
        ("", Refusal::MalformedBody),
        ("[]", Refusal::MalformedBody),
        ("{}", Refusal::MalformedBody),
        (r#"{"notificationItems":{}}"#, Refusal::MalformedBody),
        (r#"{"notificationItems":[]}"#, Refusal::MissingSignature),
        (r#"{"notificationItems":[1]}"#, Refusal::MalformedBody),
        (
            r#"{"notificationItems":[{"NotificationRequestItem":[]}]}"#,
            Refusal::MalformedBody,
        ),
        (
            r#"{"notificationItems":[{"NotificationRequestItem":{}}]}"#,
            Refusal::MissingSignature,
        ),
        (
            r#"{"notificationItems":[{"NotificationRequestItem":{"additionalData":{"hmacSignature":7}}}]}"#,
            Refusal::MalformedSignature,
        ),
        (
            r#"{"notificationItems":[{"NotificationRequestItem":{}}],"notificationItems":[]}"#,
            Refusal::MalformedBody,
        ),
    ] {
        let refused = adyen.verify(
            &request(&Headers::default(), body.as_bytes()),
            &secrets,
            now(),
        );
        assert_eq!(refused, Err(refusal), "{body}");
    }
}

#[test]
fn f14_a_public_key_neither_signs_nor_serves_as_a_secret() {
    let asymmetric = Options {
        dialect: Some("asymmetric".into()),
        ..Options::default()
    };
    let provider = build("standard-webhooks", &asymmetric).unwrap();
    let signed = provider.sign(b"{}", "t", "msg_1", &SecretText::new(PUBLIC), now());
    assert!(signed.unwrap_err().to_string().contains("public key"));
    let symmetric = preset("standard-webhooks");
    assert!(symmetric.key(&SecretText::new(PUBLIC), true).is_err());
}
