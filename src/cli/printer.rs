//! The only door to stdout and stderr.

use std::fmt::Display;
use std::io::{self, Write as _};

use serde::Serialize;

use super::failure::Failure;

/// Writes data to stdout and remarks to stderr.
#[derive(Debug, Clone, Copy)]
pub(super) struct Printer {
    json: bool,
}

#[expect(
    clippy::unused_self,
    reason = "holding a printer is the permission to print"
)]
impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether a machine reads stdout.
    pub(super) fn json(self) -> bool {
        self.json
    }

    /// A line of data.
    ///
    /// # Errors
    ///
    /// When stdout cannot be written; a reader that has gone ends the verb quietly.
    pub(super) fn line(self, text: impl Display) -> Result<(), Failure> {
        writeln!(io::stdout().lock(), "{text}").map_err(Failure::stdout)
    }

    /// One JSON document on a line of its own.
    ///
    /// # Errors
    ///
    /// As [`Printer::line`].
    pub(super) fn value(self, value: &impl Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_vec(value).map_err(|e| Failure::stdout(e.into()))?;
        text.push(b'\n');
        self.bytes(&text)
    }

    /// Bytes as they are.
    ///
    /// # Errors
    ///
    /// As [`Printer::line`].
    pub(super) fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.flush())
            .map_err(Failure::stdout)
    }

    /// A remark. There is nobody to tell when stderr is closed.
    pub(super) fn note(self, text: impl Display) {
        drop(writeln!(io::stderr().lock(), "{text}"));
    }
}
