//! The one place where a signature is compared.

use subtle::ConstantTimeEq as _;

/// Whether two byte strings are equal, in time that depends on their lengths only.
///
/// Every scheme decodes what it received first and compares bytes here; other lengths are "no
/// match", never an error. A test of this folder fails when a preset brings a comparison of its
/// own.
pub(crate) fn same(expected: &[u8], given: &[u8]) -> bool {
    expected.ct_eq(given).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f7_lengths_that_differ_are_no_match() {
        assert!(same(b"abc", b"abc"));
        for other in [&b""[..], b"ab", b"abd", b"abcd", "ab\u{e9}".as_bytes()] {
            assert!(!same(b"abc", other));
        }
    }

    #[test]
    fn f8_no_preset_compares_signatures_by_itself() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/provider");
        let mut seen = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() || path.ends_with("fixtures.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let (own, mac) = (path.ends_with("compare.rs"), path.ends_with("mac.rs"));
            seen += usize::from(own) + usize::from(mac);
            for (number, line) in code.lines().enumerate() {
                let line = line.trim();
                if own || line.starts_with("//") {
                    continue;
                }
                let place = format!("{}:{}: {line}", path.display(), number + 1);
                let foreign = ["ct_eq", "verify_slice", "constant_time", "subtle::"];
                assert!(!foreign.iter().any(|word| line.contains(word)), "{place}");
                // The one check that is no comparison.
                assert!(mac || !line.contains("verify_strict"), "{place}");
                let equality = ["==", "!=", ".eq("].iter().any(|sign| line.contains(sign));
                let words = [
                    "mac",
                    "signature",
                    "expected",
                    "candidate",
                    "given",
                    "token",
                ];
                let named = line
                    .split(|c: char| !c.is_ascii_alphabetic())
                    .any(|word| words.contains(&word));
                assert!(!(equality && named), "only compare::same compares: {place}");
            }
        }
        assert_eq!(seen, 2);
    }
}
