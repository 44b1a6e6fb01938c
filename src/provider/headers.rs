//! Header fields as a list: order, case and repeats are kept.

use crate::domain::Refusal;

/// Never stored, whatever a preset asks for: their value is the secret.
pub(crate) const NEVER_STORED: [&str; 7] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "set-cookie",
    "x-api-key",
    "x-auth-token",
    "x-gitlab-token",
];

/// Header fields in the order received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, Vec<u8>)>);

impl Headers {
    /// Appends a field.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) {
        self.0.push((name.into(), value.into()));
    }

    /// Every value of the name, whatever its letter case, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.0
            .iter()
            .filter(move |(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_slice())
    }

    /// The only value of the name; `None` when absent. The first when repeated: a check that must
    /// refuse repeats asks [`Headers::all`].
    pub fn first<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The value of a header that a check needs, without white space around it; `None` when it is
    /// absent or empty.
    ///
    /// # Errors
    ///
    /// [`Refusal::MalformedSignature`] when it was sent twice: two parties on the way might take
    /// different ones.
    pub(crate) fn only<'a>(&'a self, name: &'a str) -> Result<Option<&'a [u8]>, Refusal> {
        let mut values = self.all(name);
        let first = values.next().map(<[u8]>::trim_ascii);
        if values.next().is_some() {
            return Err(Refusal::MalformedSignature);
        }
        Ok(first.filter(|value| !value.is_empty()))
    }

    /// All fields.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_slice()))
    }
}

impl<N: Into<String>, V: Into<Vec<u8>>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        Self(
            fields
                .into_iter()
                .map(|(n, v)| (n.into(), v.into()))
                .collect(),
        )
    }
}

/// Whether a text can be the name of a header field.
///
/// # Source
///
/// RFC 9110, `token`.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
