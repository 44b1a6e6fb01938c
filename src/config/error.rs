//! Why a configuration cannot be used.

use std::fmt;
use std::path::{Path, PathBuf};

use super::problem::Problem;

/// Why a configuration cannot be used. `Display` has a line per problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file was read and has errors.
    #[error("{} cannot be used: {}", path.display(), List(problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every error, in the order of the file.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    pub(super) fn invalid(path: &Path, problems: Vec<Problem>) -> Self {
        Self::Invalid {
            path: path.to_owned(),
            problems,
        }
    }

    /// The errors, if the file could be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Invalid { problems, .. } => problems,
        }
    }
}

struct List<'a>(&'a [Problem]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [only] => write!(f, "1 error\n  {only}"),
            many => {
                write!(f, "{} errors", many.len())?;
                many.iter()
                    .try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}
