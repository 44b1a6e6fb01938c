use std::sync::Arc;

use async_trait::async_trait;

use super::*;
use crate::dispatch::{
    Answer, Delivered, External, Function, HandlerError, HttpProbe, SpecError, Work,
};
use crate::domain::{Cap, Pattern, ProbeSchedule, Probed, Rate, VersionBy};
use crate::provider::{self, Options};

struct Idle;

#[async_trait]
impl External for Idle {
    async fn call(&self, _key: &str, _event: &Delivered) -> Result<Answer, HandlerError> {
        Ok(Answer::Done)
    }

    async fn probe(&self, _key: &str, _event: &Delivered) -> Result<Probed, HandlerError> {
        Ok(Probed::Absent)
    }
}

#[async_trait]
impl Function for Idle {
    async fn handle(&self, _event: &Delivered, _work: &Work<'_>) -> Result<Answer, HandlerError> {
        Ok(Answer::Done)
    }
}

fn external() -> HandlerKind {
    HandlerKind::External(Arc::new(Idle))
}

fn elsewhere() -> HandlerKind {
    HandlerKind::sql_elsewhere("app.f", "postgresql://u@h/d").unwrap()
}

fn http(on_unknown: HttpUnknown) -> HandlerKind {
    HandlerKind::Http(HttpTarget {
        url: "http://h/x".into(),
        secrets: vec![(
            "a".into(),
            SecretText::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        )],
        on_unknown,
    })
}

fn posting(change: impl FnOnce(&mut HttpTarget)) -> HandlerKind {
    let mut kind = http(HttpUnknown::Retry);
    if let HandlerKind::Http(target) = &mut kind {
        change(target);
    }
    kind
}

fn asking(url: &str) -> HttpUnknown {
    HttpUnknown::Probe(HttpProbe {
        url: url.into(),
        post: false,
        not_found_is_absent: false,
    })
}

fn spec(kind: HandlerKind) -> HandlerSpec {
    HandlerSpec::new("h", vec![Pattern::parse("*:*").unwrap()], kind)
}

fn with(kind: HandlerKind, change: impl FnOnce(&mut HandlerSpec)) -> HandlerSpec {
    let mut spec = spec(kind);
    change(&mut spec);
    spec
}

fn function(change: impl FnOnce(&mut HandlerSpec)) -> HandlerSpec {
    with(HandlerKind::Function(Arc::new(Idle)), change)
}

fn problems(spec: &HandlerSpec) -> Vec<SpecError> {
    let signer = provider::build("standard-webhooks", &Options::default()).unwrap();
    spec.problems(signer.as_ref())
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn every_kind_can_be_run_with_its_defaults() {
    let sql = HandlerKind::Sql {
        call: "app.f".into(),
    };
    for kind in [
        sql,
        elsewhere(),
        external(),
        http(HttpUnknown::Retry),
        http(HttpUnknown::Hold),
        http(asking("http://h/{effect_key}")),
    ] {
        assert_eq!(problems(&spec(kind.clone())), [], "{kind:?}");
    }
    assert_eq!(problems(&function(|_| ())), []);
}

#[test]
fn the_lease_of_a_call_outlasts_its_time_out() {
    for kind in [external(), elsewhere(), http(HttpUnknown::Retry)] {
        let lease = |lease: Duration| {
            with(kind.clone(), |spec| {
                spec.timeout = SECOND;
                spec.lease = lease;
            })
        };
        let short = SpecError::LeaseTooShort {
            lease: Duration::from_millis(5_999),
            timeout: SECOND,
        };
        assert_eq!(problems(&lease(Duration::from_millis(5_999))), [short]);
        assert_eq!(problems(&lease(Duration::from_secs(6))), []);
    }
    // A transaction is not repeated while it runs, however long.
    assert_eq!(problems(&function(|spec| spec.lease = SECOND / 2)), []);
}

#[test]
fn what_lanes_and_their_exceptions_contradict_is_refused() {
    let skip = |kind: HandlerKind, change: fn(&mut HandlerSpec)| {
        with(kind, |spec| {
            spec.lane = Some(LaneBy::Entity);
            spec.policy.on_uncertain = OnUncertain::Skip;
            change(spec);
        })
    };
    let newer: fn(&mut HandlerSpec) =
        |spec| spec.apply_if_newer = Some(VersionBy::parse("occurred_at").unwrap());
    let hold: fn(&mut HandlerSpec) = |spec| spec.policy.on_dead = OnDead::Hold;
    let unlaned: fn(&mut HandlerSpec) = |spec| spec.lane = None;
    assert_eq!(problems(&skip(external(), |_| ())), []);
    for (spec, expected) in [
        (skip(external(), newer), SpecError::SkipAndNewer),
        (
            skip(http(HttpUnknown::Hold), newer),
            SpecError::SkipAndNewer,
        ),
        (skip(external(), hold), SpecError::SkipAndHold),
        (
            skip(external(), unlaned),
            SpecError::NoLane("lane_on_uncertain"),
        ),
        (skip(http(HttpUnknown::Retry), |_| ()), SpecError::SentAgain),
        (skip(elsewhere(), |_| ()), SpecError::NeverUncertain),
        (function(hold), SpecError::NoLane("lane_on_dead")),
    ] {
        assert_eq!(problems(&spec), [expected]);
    }
    for kind in [external(), elsewhere(), http(HttpUnknown::Retry)] {
        for lane in [None, Some(LaneBy::Account)] {
            let spec = with(kind.clone(), |spec| {
                newer(spec);
                spec.lane = lane;
            });
            assert_eq!(problems(&spec), [SpecError::NewerWithoutLane], "{kind:?}");
        }
    }
    assert_eq!(problems(&function(newer)), []);
}

#[test]
fn names_numbers_and_times_are_within_their_bounds() {
    let zero = SpecError::Zero;
    let outside = |setting, range: RangeInclusive<i64>| SpecError::OutOfRange {
        setting,
        least: *range.start(),
        most: *range.end(),
    };
    let long = |setting, most| SpecError::TooLong { setting, most };
    let crossed = |setting| SpecError::FirstBeyondMax { setting };
    let breaker = |change: fn(&mut BreakerPolicy)| {
        with(external(), |spec| {
            change(spec.breaker.get_or_insert_default());
        })
    };
    let rate = |count, per| {
        function(|spec| {
            spec.cap = Cap {
                rate: Some(Rate { count, per }),
                ..Cap::default()
            };
        })
    };
    for (spec, expected) in [
        (function(|s| s.name = "A b".into()), SpecError::Name),
        (function(|s| s.was = Some("h".into())), SpecError::Was),
        (function(|s| s.events.clear()), SpecError::NoEvents),
        (function(|s| s.timeout = Duration::ZERO), zero("timeout")),
        (function(|s| s.lease = Duration::ZERO), zero("lease")),
        (
            function(|s| s.timeout = Duration::from_hours(25)),
            long("timeout", "1d"),
        ),
        (
            function(|s| s.lease = Duration::MAX),
            long("lease", "ten years"),
        ),
        (
            function(|s| s.policy.retry.span = Duration::MAX),
            long("retry.for", "ten years"),
        ),
        (
            function(|s| s.policy.retry.first = Duration::ZERO),
            zero("retry.first"),
        ),
        (
            function(|s| s.policy.not_yet.max = SECOND),
            crossed("not_yet"),
        ),
        (
            function(|s| s.policy.crashes = 0),
            outside("crashes", CRASHES),
        ),
        (function(|s| s.batch = 0), outside("batch", BATCH)),
        (
            with(external(), |s| s.concurrency = 0),
            outside("concurrency", CONCURRENCY),
        ),
        (
            with(external(), |s| s.retry_share = 0),
            outside("retry.share", SHARE),
        ),
        (
            function(|s| s.cap.in_flight = Some(0)),
            outside("max_in_flight", IN_FLIGHT),
        ),
        (rate(0, SECOND), outside("rate", RATE)),
        (rate(1, Duration::ZERO), zero("rate")),
        (
            breaker(|b| b.failures = 101),
            outside("breaker.failures", BREAKER_FAILURES),
        ),
        (
            breaker(|b| b.minimum = 0),
            outside("breaker.minimum", BREAKER_MINIMUM),
        ),
        (
            breaker(|b| b.probes = 4),
            outside("breaker.probes", BREAKER_PROBES),
        ),
        (
            breaker(|b| b.window = Duration::ZERO),
            zero("breaker.window"),
        ),
        (breaker(|b| b.first = b.max * 2), crossed("breaker")),
        (
            with(external(), |s| {
                s.probes = ProbeSchedule::new(vec![Duration::MAX]).unwrap();
            }),
            long("probe", "ten years"),
        ),
    ] {
        assert_eq!(problems(&spec), [expected], "{spec:?}");
    }
}

#[test]
fn functions_addresses_and_secrets_can_be_used() {
    let secret = |text: &str| {
        spec(posting(|target| {
            target.secrets = vec![("a".into(), SecretText::new(text))];
        }))
    };
    let said = |spec: &HandlerSpec| {
        let found: Vec<String> = problems(spec).iter().map(ToString::to_string).collect();
        found.join("; ")
    };
    let call = HandlerKind::Sql {
        call: "app.f(); drop".into(),
    };
    for (spec, expected) in [
        (spec(call), "must be schema.function"),
        (
            spec(posting(|target| target.url = "http://u:pass1@h".into())),
            "`url` must not hold a user name",
        ),
        (
            spec(http(asking("http://h/{key}"))),
            "`probe.url` knows {effect_key} only",
        ),
        (spec(posting(|target| target.secrets.clear())), "unsigned"),
        (secret("whsec_short"), "secret \"a\": cannot be used"),
        (secret("whsec_changeme_changeme"), "placeholder"),
    ] {
        let said = said(&spec);
        assert!(said.contains(expected), "{said}");
        assert!(
            !said.contains("pass1") && !said.contains("whsec_s"),
            "{said}"
        );
    }
}

#[test]
fn a_set_has_each_name_once() {
    let signer = provider::build("standard-webhooks", &Options::default()).unwrap();
    let first = |specs: &[HandlerSpec]| of_all(specs, signer.as_ref());
    let named = |name: &str, was: Option<&str>| {
        function(|spec| {
            spec.name = name.into();
            spec.was = was.map(str::to_owned);
        })
    };
    assert_eq!(first(&[named("a", None), named("b", Some("c"))]), None);
    assert_eq!(
        first(&[named("a", None), named("a", None)]),
        Some(("a".into(), SpecError::NameTaken))
    );
    assert_eq!(
        first(&[named("a", Some("b")), named("b", None)]),
        Some(("a".into(), SpecError::WasTaken("b".into())))
    );
}
