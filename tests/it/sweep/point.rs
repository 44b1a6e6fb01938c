//! A crash point: which message, what is cut, what is killed.

use std::fmt;
use std::str::FromStr;

/// Whose connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// The node that receives and answers the API; it does not dispatch.
    Inbox,
    /// The node that dispatches.
    Worker,
    /// A verb of the command line.
    Command,
    /// A node on its way up.
    Starter,
}

impl Role {
    pub(super) const ALL: [Self; 4] = [Self::Inbox, Self::Worker, Self::Command, Self::Starter];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inbox => "inbox",
            Self::Worker => "worker",
            Self::Command => "command",
            Self::Starter => "starter",
        })
    }
}

/// What happens to the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Cut {
    /// It is not forwarded; the connection is closed.
    DropBefore,
    /// It is forwarded and, on its way to PostgreSQL, executed; the answer and all that follows is
    /// lost and the connection closed.
    DropReply,
    /// All connections of its process stop for longer than a lease; then they go on.
    Freeze,
    /// As [`Cut::DropBefore`], with a TCP reset towards the process.
    Reset,
}

impl Cut {
    pub(super) const ALL: [Self; 4] =
        [Self::DropBefore, Self::DropReply, Self::Freeze, Self::Reset];
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DropBefore => "drop-before",
            Self::DropReply => "drop-reply",
            Self::Freeze => "freeze",
            Self::Reset => "reset",
        })
    }
}

/// What dies at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kill {
    Nothing,
    /// SIGKILL to the process whose message it is.
    Own,
    /// SIGKILL to the other node.
    Other,
    /// SIGKILL to every process of PostgreSQL.
    Postgres,
}

impl Kill {
    pub(super) const ALL: [Self; 4] = [Self::Nothing, Self::Own, Self::Other, Self::Postgres];
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "none",
            Self::Own => "own",
            Self::Other => "other",
            Self::Postgres => "postgres",
        })
    }
}

/// A message: its name, and which of that name since the scenario began, from 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) name: String,
    pub(super) occurrence: u32,
}

impl Spot {
    /// Whether it comes on a connection that was just made, and not again.
    pub(super) fn is_of_a_new_connection(&self) -> bool {
        let statement = self
            .name
            .split_once(' ')
            .map_or("", |(_, statement)| statement);
        [
            "connect",
            "show",
            "prepare",
            "close",
            "listen",
            "select current_setting",
            "set after connect",
        ]
        .iter()
        .any(|first| statement.starts_with(first))
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.name, self.occurrence)
    }
}

/// `ingest/inbox commit after ingest_reserve < CommandComplete #2/drop-before/own`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Point {
    pub(super) scenario: String,
    pub(super) spot: Spot,
    pub(super) cut: Cut,
    pub(super) kill: Kill,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scenario,
            spot,
            cut,
            kill,
        } = self;
        write!(f, "{scenario}/{spot}/{cut}/{kill}")
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("not a point of the sweep: {text:?}");
        let parts: Vec<&str> = text.trim().split('/').collect();
        let [scenario, spot, cut, kill] = parts[..] else {
            return Err(wrong());
        };
        let (name, occurrence) = spot.rsplit_once(" #").ok_or_else(wrong)?;
        let cut = Cut::ALL.into_iter().find(|known| known.to_string() == cut);
        let kill = Kill::ALL
            .into_iter()
            .find(|known| known.to_string() == kill);
        Ok(Self {
            scenario: scenario.to_owned(),
            spot: Spot {
                name: name.to_owned(),
                occurrence: occurrence.parse().map_err(|_| wrong())?,
            },
            cut: cut.ok_or_else(wrong)?,
            kill: kill.ok_or_else(wrong)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_as_it_is_written() {
        let text = "ingest/inbox commit after ingest_reserve < CommandComplete 2 #3/drop-reply/own";
        let point: Point = text.parse().unwrap();
        assert_eq!((point.spot.occurrence, point.kill), (3, Kill::Own));
        assert_eq!(point.to_string(), text);
        assert!("ingest/x #1/drop/own".parse::<Point>().is_err());
    }
}
