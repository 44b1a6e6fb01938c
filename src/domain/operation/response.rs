//! The stored answer of an operation.

use bytes::Bytes;

/// Longest body that is stored, in bytes.
pub const BODY_MAX: usize = 8 * 1_024 * 1_024;

/// Status, headers and body as they are stored and replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// 200 to 599.
    pub status: u16,
    /// Allow-listed headers, names in lower case, in the order given.
    pub headers: Vec<(String, String)>,
    /// The bytes.
    pub body: Bytes,
}

/// Why an answer cannot be stored; what the handler did must not be committed with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseFault {
    /// The body is longer than [`BODY_MAX`].
    #[error("the answer's body is longer than 8 MiB")]
    TooLong,
    /// Not a final status code.
    #[error("the answer's status is not one of 200 to 599")]
    Status,
    /// A header cannot be sent.
    #[error("a header of the answer is not one that HTTP can carry")]
    Header,
}
