//! Tables of cases, and properties against `serde_json` as the slow reference.

use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::Value as Reference;

use super::*;

fn parse(text: &str) -> Result<Document<'_>, JsonError> {
    Document::parse(text.as_bytes())
}

fn canonical(text: &str) -> String {
    String::from_utf8(parse(text).unwrap().canonical(&[]).unwrap()).unwrap()
}

/// Builds the reference value from ours, by the public walk only.
fn rebuild(value: Value<'_>) -> Reference {
    match value.kind() {
        Kind::Null => Reference::Null,
        Kind::Bool => Reference::Bool(value.bool().unwrap()),
        Kind::Number => serde_json::from_str(value.number().unwrap()).unwrap(),
        Kind::String => Reference::String(value.string().unwrap().into_owned()),
        Kind::Array => value.elements().map(rebuild).collect(),
        Kind::Object => Reference::Object(
            value
                .members()
                .map(|(name, value)| (name.into_owned(), rebuild(value)))
                .collect(),
        ),
    }
}

#[test]
fn f37_depth_is_limited_at_128_and_never_recurses() {
    for (depth, good) in [
        (1, true),
        (127, true),
        (128, true),
        (129, false),
        (100_000, false),
    ] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let text = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let document = parse(&text);
            if good {
                let document = document.unwrap();
                assert!(document.canonical(&[]).is_some(), "{depth}");
                assert!(!document.root().repeats_names());
            } else {
                assert_eq!(document.unwrap_err(), JsonError::TooDeep, "{depth}");
            }
        }
        let unclosed = "[".repeat(depth);
        assert!(parse(&unclosed).is_err());
    }
}

#[test]
fn what_rfc_8259_does_not_allow_is_refused() {
    let bad = [
        "",
        " ",
        "{",
        "[",
        "]",
        "}",
        "[}",
        "{]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{1:2}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "01",
        "-",
        "-01",
        "+1",
        "1.",
        ".1",
        "1e",
        "1e+",
        "0x1",
        "1_0",
        "NaN",
        "Infinity",
        "tru",
        "truex",
        "nul",
        "True",
        "'a'",
        "\"a",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u123g\"",
        "\"\n\"",
        "\"\t\"",
        "\"\0\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\n\"",
        "\"\\ud800\\u0041\"",
        "1 1",
        "[] []",
        "// x\n1",
        "/**/1",
        "\u{feff}1",
        "[1]x",
        "\u{a0}1",
    ];
    for text in bad {
        assert!(parse(text).is_err(), "{text:?}");
        assert!(serde_json::from_str::<Reference>(text).is_err(), "{text:?}");
    }
    for bytes in [
        &b"\"\xff\""[..],
        b"\"\xed\xa0\x80\"",
        b"\xff",
        b"\"\xc3\"",
        b"[\"a\"\xe9]",
    ] {
        assert!(matches!(Document::parse(bytes), Err(JsonError::Utf8(_))));
    }
}

#[test]
fn f36_number_text_is_kept() {
    for text in [
        "1e400",
        "0.10",
        "-0",
        "9007199254740993",
        "123456789012345678901",
        "1E+2",
        "-0.0e-0",
    ] {
        let document = parse(text).unwrap();
        assert_eq!(document.root().number(), Some(text));
        assert_eq!(canonical(text), text);
    }
}

#[test]
fn f35_an_escaped_nul_is_good_json() {
    let text = r#"{"a\u0000b":"\u0000"}"#;
    let document = parse(text).unwrap();
    let (name, value) = document.root().members().next().unwrap();
    assert_eq!(
        (name.as_ref(), value.string().unwrap().as_ref()),
        ("a\0b", "\0")
    );
    assert_eq!(canonical(text), text);
}

#[test]
fn strings_have_one_canonical_spelling() {
    for (one, other) in [
        (r#""\u00e9""#, "\"é\""),
        (r#""\/""#, "\"/\""),
        (r#""\ud83d\ude00""#, "\"😀\""),
        (r#""\u000A""#, r#""\n""#),
        (r#""\u0022\u005c""#, r#""\"\\""#),
        (r#"{"\u0062":1,"a":2}"#, r#"{"a":2,"b":1}"#),
    ] {
        assert_eq!(canonical(one), canonical(other), "{one}");
    }
    // A composed and a decomposed letter are two texts.
    assert_ne!(canonical("\"é\""), canonical("\"e\u{301}\""));
}

#[test]
fn pointers_follow_rfc_6901() {
    let text =
        r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"k\"l":6," ":7,"m~n":8,"o":{"0":9}}"#;
    let document = parse(text).unwrap();
    for (pointer, raw) in [
        ("", text),
        ("/foo/0", "\"bar\""),
        ("/foo/1", "\"baz\""),
        ("/", "0"),
        ("/a~1b", "1"),
        ("/c%d", "2"),
        ("/e^f", "3"),
        ("/k\"l", "6"),
        ("/ ", "7"),
        ("/m~0n", "8"),
        ("/o/0", "9"),
    ] {
        assert_eq!(document.pointer(pointer).unwrap().raw(), raw, "{pointer}");
        assert!(valid_pointer(pointer));
    }
    for missing in [
        "foo", "/foo/2", "/foo/00", "/foo/-", "/foo/01", "/foo/+1", "/x", "/o/0/x", "/m~n", "/m~2n",
    ] {
        assert!(document.pointer(missing).is_none(), "{missing}");
    }
    assert!(!valid_pointer("foo") && !valid_pointer("/m~n") && valid_pointer("/x/0"));
}

#[test]
fn doubled_names_are_told_and_the_last_is_taken() {
    let document = parse(r#"{"id":"a","\u0069d":"b","data":{"x":1,"x":2},"y":3}"#).unwrap();
    assert_eq!(document.pointer("/id").unwrap().raw(), "\"b\"");
    assert!(matches!(document.find("/id"), Found::Repeated(_)));
    assert!(matches!(document.find("/data/x"), Found::Repeated(_)));
    assert!(matches!(document.find("/y"), Found::One(_)));
    assert!(matches!(document.find("/z"), Found::Missing));
    assert!(document.root().repeats_names());
    assert_eq!(document.canonical(&[]), None);
    // Also where the doubled names lie in what is left out.
    assert_eq!(
        parse(r#"{"v":{"x":1,"x":2}}"#).unwrap().canonical(&["/v"]),
        None
    );
}

#[test]
fn volatile_members_are_left_out_by_pointer() {
    let text = r#"{"a":1,"b":{"c":2,"d":3},"e":[{"f":4,"g":5},{"f":6}],"x/y":7}"#;
    for (volatile, left) in [
        (
            &["/a"][..],
            r#"{"b":{"c":2,"d":3},"e":[{"f":4,"g":5},{"f":6}],"x/y":7}"#,
        ),
        (
            &["/b/c", "/x~1y", "/none"],
            r#"{"a":1,"b":{"d":3},"e":[{"f":4,"g":5},{"f":6}]}"#,
        ),
        (&["/e/*/f", "/b"], r#"{"a":1,"e":[{"g":5},{}],"x/y":7}"#),
        (
            &["/e/1"],
            r#"{"a":1,"b":{"c":2,"d":3},"e":[{"f":4,"g":5}],"x/y":7}"#,
        ),
        (&["/*"], "{}"),
        (&["/c", "/b/c/z"], text),
    ] {
        let written = parse(text).unwrap().canonical(volatile).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), left, "{volatile:?}");
    }
}

#[test]
fn spans_are_the_bytes_of_the_value() {
    let text = " { \"é\" : [ 1 , \"x\\\"y\" , {} ] } ";
    let document = parse(text).unwrap();
    let array = document.pointer("/é").unwrap();
    assert_eq!(&text[array.span()], "[ 1 , \"x\\\"y\" , {} ]");
    let raws: Vec<_> = array.elements().map(|v| v.raw()).collect();
    assert_eq!(raws, ["1", "\"x\\\"y\"", "{}"]);
    assert!(format!("{document:?} {array:?}").find('x').is_none());
}

fn any_json() -> impl Strategy<Value = Reference> {
    let leaf = prop_oneof![
        Just(Reference::Null),
        any::<bool>().prop_map(Reference::from),
        any::<i64>().prop_map(Reference::from),
        any::<f64>()
            .prop_filter("finite", |f| f.is_finite())
            .prop_map(Reference::from),
        any::<String>().prop_map(Reference::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Reference::from),
            prop::collection::btree_map("[a-c\u{e9}\"\\\\\n/]{0,3}", inner, 0..6)
                .prop_map(|map| Reference::Object(map.into_iter().collect())),
        ]
    })
}

/// The slow reference of the canonical form; its maps are sorted.
fn reference_canonical(value: &Reference) -> String {
    let string = |text: &str| {
        let inner: String = text
            .chars()
            .map(|c| match c {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                c if c < ' ' => format!("\\u{:04x}", u32::from(c)),
                c => c.to_string(),
            })
            .collect();
        format!("\"{inner}\"")
    };
    match value {
        Reference::String(text) => string(text),
        Reference::Array(all) => {
            let all: Vec<_> = all.iter().map(reference_canonical).collect();
            format!("[{}]", all.join(","))
        }
        Reference::Object(map) => {
            let mut all: Vec<_> = map.iter().collect();
            all.sort_by_key(|(name, _)| *name);
            let all: Vec<_> = all
                .into_iter()
                .map(|(name, value)| format!("{}:{}", string(name), reference_canonical(value)))
                .collect();
            format!("{{{}}}", all.join(","))
        }
        other => other.to_string(),
    }
}

/// Every character of every string written as an escape.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                inside = !inside;
                out.push('"');
            }
            '\\' => out.extend(['\\', characters.next().unwrap()]),
            c if inside && !c.is_ascii_alphanumeric() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04X}").unwrap();
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// Another spelling of the same value: members in another order, white space, escapes.
fn respelled(value: &Reference, dice: &mut impl FnMut(usize) -> usize) -> String {
    let space = |dice: &mut dyn FnMut(usize) -> usize| [" ", "", "\n\t", ""][dice(4)].to_owned();
    match value {
        Reference::Array(all) => {
            let all: Vec<_> = all
                .iter()
                .map(|value| space(dice) + &respelled(value, dice) + &space(dice))
                .collect();
            format!("[{}]", all.join(","))
        }
        Reference::Object(map) => {
            let mut all: Vec<_> = map
                .iter()
                .map(|(name, value)| {
                    let name = Reference::from(name.as_str());
                    format!(
                        "{}{}{}:{}",
                        space(dice),
                        respelled(&name, dice),
                        space(dice),
                        respelled(value, dice)
                    )
                })
                .collect();
            for last in (1..all.len()).rev() {
                all.swap(last, dice(last + 1));
            }
            format!("{{{}{}}}", all.join(","), space(dice))
        }
        Reference::String(_) if dice(2) == 0 => escaped(&value.to_string()),
        other => other.to_string(),
    }
}

/// The value without what the pointers name, by a walk that knows nothing of the other one.
fn without(value: &Reference, pointers: &[Vec<String>]) -> Reference {
    let kept = |name: &str, child: &Reference| {
        let below: Vec<&[String]> = pointers
            .iter()
            .filter(|p| p.first().is_some_and(|token| token == "*" || token == name))
            .map(|p| &p[1..])
            .collect();
        let gone = below.iter().any(|p| p.is_empty());
        let below: Vec<_> = below.iter().map(|p| p.to_vec()).collect();
        (!gone).then(|| without(child, &below))
    };
    match value {
        Reference::Array(all) => all
            .iter()
            .enumerate()
            .filter_map(|(n, child)| kept(&n.to_string(), child))
            .collect(),
        Reference::Object(map) => Reference::Object(
            map.iter()
                .filter_map(|(name, child)| Some((name.clone(), kept(name, child)?)))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// The value with its `at`-th scalar replaced.
fn changed(value: &Reference, at: &mut usize) -> Reference {
    match value {
        Reference::Array(all) => all.iter().map(|child| changed(child, at)).collect(),
        Reference::Object(map) => Reference::Object(
            map.iter()
                .map(|(name, child)| (name.clone(), changed(child, at)))
                .collect(),
        ),
        scalar => {
            let hit = *at == 0;
            *at = at.wrapping_sub(1);
            if hit {
                Reference::from("changed")
            } else {
                scalar.clone()
            }
        }
    }
}

proptest! {
    #[test]
    fn two_copies_compare_equal_exactly_when_the_reference_says_so(
        value in any_json(), at in 0_usize..12, seed in any::<u64>(),
        volatile in prop::collection::vec("(/([a-c]|\u{e9}|[0-2]|[*])){1,3}", 0..3),
    ) {
        let mut state = seed | 1;
        let mut dice = |sides: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % sides
        };
        let pointers: Vec<Vec<String>> = volatile
            .iter()
            .map(|p| p.split('/').skip(1).map(str::to_owned).collect())
            .collect();
        let volatile: Vec<&str> = volatile.iter().map(String::as_str).collect();
        let other = changed(&value, &mut at.clone());
        let mut digest = |value: &Reference| {
            let text = respelled(value, &mut dice);
            parse(&text).unwrap().canonical(&volatile).unwrap()
        };
        let expected = reference_canonical(&without(&value, &pointers));
        prop_assert_eq!(String::from_utf8(digest(&value)).unwrap(), expected.clone());
        let equal = reference_canonical(&without(&other, &pointers)) == expected;
        prop_assert_eq!(digest(&value) == digest(&other), equal);
    }

    #[test]
    fn every_value_is_read_as_the_reference_reads_it(value in any_json()) {
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap(), escaped(&value.to_string())] {
            let document = parse(&text).unwrap();
            prop_assert_eq!(&rebuild(document.root()), &serde_json::from_str::<Reference>(&text).unwrap());
            let written = document.canonical(&[]).unwrap();
            prop_assert_eq!(std::str::from_utf8(&written).unwrap(), reference_canonical(&value));
            let again = Document::parse(&written).unwrap();
            prop_assert_eq!(again.canonical(&[]).unwrap(), written.clone());
        }
    }

    #[test]
    fn accepts_exactly_what_the_reference_accepts(text in "[\\[\\]{}\",: 0-9.eE+\\-truefalsn\\\\u\u{e9}\n]{0,24}") {
        let reference = serde_json::from_str::<Reference>(&text);
        prop_assert_eq!(parse(&text).is_ok(), reference.is_ok(), "{}", text);
    }

    #[test]
    fn a_changed_byte_never_panics_and_agrees_with_the_reference(
        value in any_json(), at in any::<prop::sample::Index>(), byte in any::<u8>()
    ) {
        let mut bytes = value.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let ours = Document::parse(&bytes);
        let reference = serde_json::from_slice::<Reference>(&bytes);
        prop_assert_eq!(ours.is_ok(), reference.is_ok());
        if let (Ok(ours), Ok(reference)) = (ours, reference) {
            prop_assert_eq!(rebuild(ours.root()), reference);
        }
    }

    #[test]
    fn pointers_agree_with_the_reference(value in any_json(), pointer in "(/([a-c]|\u{e9}|[0-3]|~0|~1|x){0,2}){0,3}") {
        let text = value.to_string();
        let document = parse(&text).unwrap();
        prop_assert_eq!(
            document.pointer(&pointer).map(rebuild), value.pointer(&pointer).cloned(), "{}", pointer
        );
    }
}
