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

    /// Whether a line of code looks like a comparison of signatures.
    fn compares(line: &str) -> bool {
        const FOREIGN: [&str; 6] = [
            "ct_eq",
            "subtle::",
            "constant_time",
            "verify_slice",
            "verify_truncated",
            "verify_strict",
        ];
        const SIGNATURES: [&str; 8] = [
            "mac",
            "signature",
            "expected",
            "candidate",
            "given",
            "received",
            "token",
            "digest",
        ];
        if line.starts_with("//") {
            return false;
        }
        let equality = ["==", "!=", ".eq(", ".ne(", ".contains(&", "starts_with("];
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
        FOREIGN.iter().any(|word| line.contains(word))
            || (equality.iter().any(|sign| line.contains(sign))
                && words.any(|word| SIGNATURES.contains(&word.to_lowercase().as_str())))
    }

    #[test]
    fn f8_no_preset_compares_signatures_by_itself() {
        for line in ["if mac == given {", "received.eq(&own)", "a.ct_eq(b)"] {
            assert!(compares(line), "{line}");
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/provider");
        let mut found = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            // Presets are files; the folder beside them holds tests, and so does `fixtures`.
            if path.is_dir() || path.ends_with("fixtures.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod").next().unwrap_or_default();
            let name = path.file_name().unwrap().to_string_lossy();
            let lines = code.lines().map(str::trim).filter(|line| compares(line));
            found.extend(lines.map(|line| format!("{name}: {line}")));
        }
        found.sort();
        assert_eq!(
            found,
            [
                "compare.rs: expected.ct_eq(given).into()",
                "compare.rs: use subtle::ConstantTimeEq as _;",
                // A signature by a public key: nothing secret is compared.
                "mac.rs: .is_ok_and(|signature| public.verify_strict(&message, &signature).is_ok())",
            ]
        );
    }
}
