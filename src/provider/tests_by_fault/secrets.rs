//! F12, F13, F14: which secrets are refused at start, by which sentence.

use super::*;

#[test]
fn f12_f13_f14_every_preset_refuses_what_is_no_secret_and_never_shows_it() {
    let fifteen = STANDARD.encode([201, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 150]);
    let prefixed = format!("whsec_{fifteen}");
    let everywhere = [
        "",
        " ",
        "\n",
        "changeme",
        "<your signing secret>",
        "${WEBHOOK_SECRET}",
        "0000000000000000",
        "whsec_",
        "whsec_!!!!",
        "whsec_QQ==",
        "whsec_your_secret_here",
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        " whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
        "-----BEGIN PUBLIC KEY-----",
    ];
    let fifteen_bytes = |provider: &Bound| match (provider.name(), provider.recipe()) {
        ("adyen", _) => "9F8E7D6C5B4A39281706F5E4D3C2B1",
        ("standard-webhooks", _) => prefixed.as_str(),
        _ => "q7Yb2nTr9LxV0mW",
    };
    for (provider, _, good) in every() {
        for text in everywhere.into_iter().chain([fifteen_bytes(&provider)]) {
            let error = provider.key(&SecretText::new(text), true).unwrap_err();
            let said = error.to_string();
            let trimmed = text.trim();
            assert!(said.len() > 20, "{text:?}: {said}");
            assert!(
                trimmed.len() < 7 || !said.contains(trimmed),
                "{text:?}: {said}"
            );
        }
        let key = provider.key(&SecretText::new(&good), true).unwrap();
        assert!(key.len() >= 16, "{provider:?}");
    }
}

#[test]
fn f12_an_empty_key_signs_nothing_not_even_for_the_offline_tools() {
    for (provider, _, _) in every() {
        for text in ["", " ", "\t", "whsec_"] {
            let loose = provider.key(&SecretText::new(text), false);
            // Where the text itself is the key, a bare prefix is a (short) key.
            let text_key =
                text == "whsec_" && matches!(provider.name(), "stripe" | "github" | "hmac");
            assert_eq!(loose.is_ok(), text_key, "{text:?} {provider:?}");
        }
    }
    let body = br#"{"id":"evt_1"}"#;
    let mac = hex_mac(b"", &[body]);
    let value = format!("sha256={mac}");
    let fields = headers([("X-Hub-Signature-256", &value)]);
    let verified = verify(&preset("github"), CHOSEN, &fields, body);
    assert_eq!(verified, Err(Refusal::BadSignature));
}

#[test]
fn a_secret_is_never_printed() {
    let provider = preset("stripe");
    let printed = format!("{:?} {provider:?}", secret(&provider, STRIPE));
    assert!(
        !printed.contains(STRIPE) && printed.contains("redacted"),
        "{printed}"
    );
}
