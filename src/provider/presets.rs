//! The table of presets that are data: one entry per dialect.
//!
//! A new sender whose signature is a MAC over a template is one entry here, its name in
//! [`super::NAMES`] and a folder of fixtures. Facts per sender stand at its entry.

use std::borrow::Cow;
use std::time::Duration;

use crate::domain::fingerprint::Rule;

use super::declared::Declared;
use super::key::KeyForm;
use super::mac::{Algorithm, Encoding, Hash};
use super::reading::{EventRules, Field, Format, ModeField, Otherwise};
use super::samples::{Sample, Samples};
use super::scheme::{Layout, Scheme, Stamp, StampFrom, Text, Unit};

/// Every entry, in the order in which they are listed.
pub(crate) const TABLE: &[Declared] = &[
    STRIPE,
    STANDARD_WEBHOOKS,
    STANDARD_WEBHOOKS_ASYMMETRIC,
    ADYEN_PLATFORM,
    GITHUB,
];

const FIVE_MINUTES: Duration = Duration::from_mins(5);
const HMAC_SHA256: Algorithm = Algorithm::Hmac(Hash::Sha256);

const fn t(text: &'static str) -> Text {
    Cow::Borrowed(text)
}

const fn json(pointer: &'static str) -> Field {
    Field::Json(t(pointer))
}

const fn header(name: &'static str) -> Field {
    Field::Header(t(name))
}

const fn seconds(from: StampFrom) -> Stamp {
    Stamp {
        from,
        unit: Unit::Seconds,
    }
}

macro_rules! sample {
    ($folder:literal, $event_type:literal) => {
        Sample {
            event_type: $event_type,
            payload: include_str!(concat!(
                "../../fixtures/",
                $folder,
                "/samples/",
                $event_type,
                ".json"
            )),
        }
    };
}

/// Stripe.
///
/// The time is an item of the signature header; during a rotation there are several `v1`, beside
/// which `v0` and unknown schemes say nothing. The key is the whole `whsec_...` text. A live
/// Connect endpoint also gets test events under the live secret, so the mode is read from the
/// body, and one happening reaches platform and connected account under one id, so the account is
/// part of the key. Deliveries of one id differ honestly in `pending_webhooks`, which counts down,
/// and in `api_version`, which belongs to the endpoint.
///
/// # Source
///
/// Stripe's documentation, "Webhooks", "Connect webhooks" and "Event destinations"; the tests of
/// stripe-python, stripe-go and stripe-dotnet (see `fixtures/stripe`).
const STRIPE: Declared = Declared {
    name: "stripe",
    dialect: None,
    about: "Stripe-Signature: HMAC-SHA256 in hex, several v1; secret = the whole whsec_... text",
    covers: "time and body, and with it the event id",
    scheme: Scheme {
        algorithm: HMAC_SHA256,
        header: t("Stripe-Signature"),
        layout: Layout::Items {
            separator: b',',
            join: b'=',
            version: "v1",
        },
        encoding: Encoding::Hex,
        signed: t("{timestamp}.{body}"),
        stamp: Some(seconds(StampFrom::Item("t"))),
        tolerance: FIVE_MINUTES,
        id_header: None,
        key: KeyForm::Text { blanks: false },
    },
    event: EventRules {
        format: Format::Json { form_field: None },
        id: Cow::Borrowed(&[Cow::Borrowed(&[json("/id")])]),
        otherwise: Otherwise::Unreadable,
        named: &[],
        event_type: Some(json("/type")),
        // Thin events (v2) name their object in `related_object`.
        entity: Cow::Borrowed(&[json("/data/object/id"), json("/related_object/id")]),
        // Thin events (v2) name the account in `context`.
        account: &["/account", "/context"],
        mode: Some(ModeField::Flag("/livemode")),
        occurred_at: Some("/created"),
        ignored: &[],
        rules: &[Rule {
            number: 1,
            volatile: &["/pending_webhooks", "/api_version"],
        }],
    },
    stored: &[],
    reply: None,
    samples: Samples::Listed(&[
        sample!("stripe", "payment_intent.succeeded"),
        sample!("stripe", "payment_intent.payment_failed"),
        sample!("stripe", "charge.refunded"),
        sample!("stripe", "charge.dispute.created"),
        sample!("stripe", "checkout.session.completed"),
        sample!("stripe", "invoice.paid"),
        sample!("stripe", "customer.subscription.updated"),
    ]),
};

/// Standard Webhooks, symmetric (`v1`).
///
/// Id and time are signed headers; a retry has a new time and the same id. An id with a `.` is
/// refused, since it could be cut in two ways. The body may be empty.
///
/// # Source
///
/// The Standard Webhooks specification (`spec/standard-webhooks.md`) and the tests of its
/// libraries (see `fixtures/standard-webhooks`).
const STANDARD_WEBHOOKS: Declared = standard_webhooks(
    None,
    "webhook-signature: HMAC-SHA256 in base64, several v1; secret = whsec_ and base64",
    HMAC_SHA256,
    "v1",
    KeyForm::Base64 { prefix: "whsec_" },
);

/// Standard Webhooks, asymmetric (`v1a`): Ed25519 over the same bytes. Nothing but `v1a` counts,
/// so the public key can never be taken for a MAC key.
///
/// # Source
///
/// As for the symmetric dialect; the asymmetric vector is from the specification's Go library at
/// commit 5fb2ce9369.
const STANDARD_WEBHOOKS_ASYMMETRIC: Declared = standard_webhooks(
    Some("asymmetric"),
    "webhook-signature: Ed25519 in base64, several v1a; secret = whpk_ and the public key",
    Algorithm::Ed25519,
    "v1a",
    KeyForm::Ed25519 {
        public: "whpk_",
        private: "whsk_",
    },
);

/// Constants of their own: inside a `const fn` they would have to be dropped.
const WEBHOOK_ID: &[Cow<'static, [Field]>] = &[Cow::Borrowed(&[header("webhook-id")])];
const DATA_ID: &[Field] = &[json("/data/id")];

/// What both dialects share.
const fn standard_webhooks(
    dialect: Option<&'static str>,
    about: &'static str,
    algorithm: Algorithm,
    version: &'static str,
    key: KeyForm,
) -> Declared {
    Declared {
        name: "standard-webhooks",
        dialect,
        about,
        covers: "id, time and body",
        scheme: Scheme {
            algorithm,
            header: t("webhook-signature"),
            layout: Layout::Items {
                separator: b' ',
                join: b',',
                version,
            },
            encoding: Encoding::Base64,
            signed: t("{id}.{timestamp}.{body}"),
            stamp: Some(seconds(StampFrom::Header(t("webhook-timestamp")))),
            tolerance: FIVE_MINUTES,
            id_header: Some(t("webhook-id")),
            key,
        },
        event: EventRules {
            format: Format::JsonOrEmpty,
            id: Cow::Borrowed(WEBHOOK_ID),
            otherwise: Otherwise::Unreadable,
            named: &[],
            event_type: Some(json("/type")),
            entity: Cow::Borrowed(DATA_ID),
            account: &[],
            mode: None,
            occurred_at: Some("/timestamp"),
            ignored: &[],
            rules: &[Rule {
                number: 1,
                volatile: &[],
            }],
        },
        stored: &[],
        reply: None,
        samples: Samples::AnyType {
            types: &["invoice.paid", "payment.succeeded", "payment.failed"],
            payload: include_str!("../../fixtures/standard-webhooks/samples/any.json"),
        },
    }
}

/// Adyen's platform, management and banking notifications: signed by header over the raw body.
/// They carry no event id; type, object and time name them, else their content.
///
/// # Source
///
/// Adyen's documentation, "Verify HMAC signatures" (balance platform and management webhooks);
/// tests of adyen-node-api-library and adyen-python-api-library (see `fixtures/adyen`).
const ADYEN_PLATFORM: Declared = Declared {
    name: "adyen",
    dialect: Some("platform"),
    about: "HmacSignature: HMAC-SHA256 in base64; secret = the key in hex",
    covers: "the body, and no time",
    scheme: Scheme {
        algorithm: HMAC_SHA256,
        header: t("HmacSignature"),
        layout: Layout::Single { prefix: t("") },
        encoding: Encoding::Base64,
        signed: t("{body}"),
        stamp: None,
        tolerance: FIVE_MINUTES,
        id_header: None,
        key: KeyForm::Hex,
    },
    event: EventRules {
        format: Format::Json { form_field: None },
        id: Cow::Borrowed(&[
            Cow::Borrowed(&[json("/type")]),
            Cow::Borrowed(ADYEN_PLATFORM_OBJECT),
            Cow::Borrowed(&[json("/timestamp")]),
        ]),
        otherwise: Otherwise::Content,
        // Two changes of one transfer may share a second.
        named: &[("seq", "/data/sequenceNumber")],
        event_type: Some(json("/type")),
        entity: Cow::Borrowed(ADYEN_PLATFORM_OBJECT),
        account: &[],
        mode: Some(ModeField::Word("/environment")),
        occurred_at: Some("/timestamp"),
        ignored: &[],
        rules: &[Rule {
            number: 1,
            volatile: &[],
        }],
    },
    stored: &["protocol"],
    reply: Some("[accepted]"),
    samples: Samples::Listed(&[
        sample!("adyen", "balancePlatform.transfer.updated"),
        sample!("adyen", "merchant.created"),
    ]),
};

const ADYEN_PLATFORM_OBJECT: &[Field] = &[
    json("/data/id"),
    json("/data/accountHolder/id"),
    json("/data/balanceAccount/id"),
    json("/data/paymentInstrument/id"),
    json("/data/sweep/id"),
    json("/data/storeId"),
    json("/data/merchantId"),
    json("/data/companyId"),
];

/// GitHub.
///
/// The delivery id names the event, not the attempt: a redelivery carries it again. It is a header
/// outside the signature, and so is the type; whoever captured a request can send it under other
/// ids. Two hooks that report one event (repository and organisation) have different hook ids and
/// one delivery id each; giving each its own source keeps them apart, so the hook id, also
/// unsigned, is stored and not part of the key. Only the SHA-256 header counts.
///
/// # Source
///
/// GitHub Docs, "Validating webhook deliveries" and "Handling failed webhook deliveries"; tests of
/// octokit/webhooks-methods.js (see `fixtures/github`).
const GITHUB: Declared = Declared {
    name: "github",
    dialect: None,
    about: "X-Hub-Signature-256: sha256= and HMAC-SHA256 in hex; secret = the text you chose",
    covers: "the body only: the event id (X-GitHub-Delivery) and the type are unsigned headers, no time is signed",
    scheme: Scheme {
        algorithm: HMAC_SHA256,
        header: t("X-Hub-Signature-256"),
        layout: Layout::Single {
            prefix: t("sha256="),
        },
        encoding: Encoding::Hex,
        signed: t("{body}"),
        stamp: None,
        tolerance: FIVE_MINUTES,
        id_header: None,
        key: KeyForm::Text { blanks: true },
    },
    event: EventRules {
        format: Format::Json {
            form_field: Some("payload"),
        },
        id: Cow::Borrowed(&[Cow::Borrowed(&[header("X-GitHub-Delivery")])]),
        otherwise: Otherwise::Unreadable,
        named: &[],
        event_type: Some(header("X-GitHub-Event")),
        entity: Cow::Borrowed(&[json("/repository/id"), json("/organization/id")]),
        account: &[],
        mode: None,
        occurred_at: None,
        ignored: &[("ping", "a ping: the hook was set up")],
        rules: &[Rule {
            number: 1,
            volatile: &[],
        }],
    },
    stored: &["x-github-hook-id"],
    reply: None,
    samples: Samples::Listed(&[
        sample!("github", "push"),
        sample!("github", "pull_request"),
        sample!("github", "issues"),
        sample!("github", "release"),
        sample!("github", "ping"),
    ]),
};

/// Types of Adyen's standard notifications with samples; the preset itself is code.
pub(crate) const ADYEN_SAMPLES: &[Sample] = &[
    sample!("adyen", "AUTHORISATION"),
    sample!("adyen", "CAPTURE"),
    sample!("adyen", "REFUND"),
    sample!("adyen", "CANCELLATION"),
    sample!("adyen", "CHARGEBACK"),
    sample!("adyen", "REPORT_AVAILABLE"),
];
