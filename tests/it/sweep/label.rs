//! Names for protocol messages that mean the same in every run.
//!
//! A message is named by the statement it belongs to, its direction (`>` to PostgreSQL, `<` from
//! it), its type, and its ordinal among its like in that statement's exchange:
//! `commit after delivery_finish < CommandComplete`. Files of `src/store/sql` give statements their
//! names; BEGIN, COMMIT and the like are told apart by their neighbours on the connection.

use std::collections::{HashMap, VecDeque};

/// Of messages of one type in one exchange, so many are told apart; the rest is not numbered.
/// (Thirteen `ParameterStatus` at every connect, a `CommandComplete` per line of a migration.)
const ORDINAL_MAX: u32 = 2;

/// What the tables hold for somebody who polls them now.
#[expect(clippy::struct_excessive_bools, reason = "each is a poll of its own")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) ready: bool,
    pub(super) suspect: bool,
    pub(super) expired: bool,
    pub(super) emitted: bool,
    pub(super) uncertain: bool,
}

/// A message as the sweep knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// `None`: passes without a number.
    pub(super) name: Option<String>,
    /// Which exchange of the connection it belongs to.
    pub(super) exchange: u64,
    /// Whether it ends its exchange.
    pub(super) ready: bool,
}

/// From the first message of a statement to its `ReadyForQuery`.
#[derive(Debug)]
struct Exchange {
    id: u64,
    label: String,
    seen: HashMap<(char, u8), u32>,
}

impl Exchange {
    fn message(&mut self, direction: char, kind: u8) -> Message {
        let seen = self.seen.entry((direction, kind)).or_default();
        *seen += 1;
        let ordinal = match *seen {
            1 => String::new(),
            more => format!(" {more}"),
        };
        let label = &self.label;
        let kind = kind_name(direction, kind);
        Message {
            name: (*seen <= ORDINAL_MAX).then(|| format!("{label} {direction} {kind}{ordinal}")),
            exchange: self.id,
            ready: direction == '<' && kind == "ReadyForQuery",
        }
    }
}

/// What was said on one connection.
#[derive(Debug)]
pub(super) struct Dialogue {
    /// Names of prepared statements.
    prepared: HashMap<String, String>,
    /// Pipelined exchanges whose answers have not all come, oldest first.
    open: VecDeque<Exchange>,
    /// Whether the last one is still being sent.
    sending: bool,
    next: u64,
    /// The last statement that has a name of its own.
    last: String,
}

impl Dialogue {
    /// A connection that has just been opened: its first exchange is the connect itself.
    pub(super) fn new() -> Self {
        let mut dialogue = Self {
            prepared: HashMap::new(),
            open: VecDeque::new(),
            sending: false,
            next: 1,
            last: "connect".to_owned(),
        };
        dialogue.begin("connect".to_owned());
        dialogue
    }

    /// The first message of all, which has no type byte.
    pub(super) fn startup(&mut self) -> Message {
        self.open[0].message('>', b'*')
    }

    fn begin(&mut self, label: String) {
        self.open.push_back(Exchange {
            id: self.next,
            label,
            seen: HashMap::new(),
        });
        self.next += 1;
    }

    /// Whether [`Dialogue::frontend`] wants to know which statement comes next.
    pub(super) fn wants_next(frame: &[u8]) -> bool {
        let text = query_text(frame).unwrap_or_default();
        matches!(first_word(&text).as_str(), "begin" | "set")
    }

    /// The statement that the first bytes of the next frame execute, if it has a name of its own.
    pub(super) fn peeked(&self, bytes: &[u8]) -> Option<String> {
        (*bytes.first()? == b'B')
            .then(|| self.bound(bytes))
            .flatten()
    }

    fn bound(&self, bind: &[u8]) -> Option<String> {
        let statement = texts(bind).nth(1)?;
        self.prepared.get(&statement).cloned()
    }

    /// Whether the frame belongs to a poll, which means one thing with work and another without.
    pub(super) fn polls(&self, frame: &[u8], next: Option<&str>) -> bool {
        let is = |name: &str| {
            [
                "delivery_claim",
                "delivery_suspect_due",
                "delivery_expired",
                "emitted_claim",
                "uncertain_claim",
            ]
            .contains(&name)
        };
        match frame.first() {
            Some(b'B') => self.bound(frame).is_some_and(|name| is(&name)),
            Some(b'Q') => {
                next.is_some_and(is)
                    || next.is_none()
                        && first_word(&query_text(frame).unwrap_or_default()) == "begin"
            }
            _ => false,
        }
    }

    /// A message to PostgreSQL. `next` is the statement behind a BEGIN or SET, `due` what a poll
    /// will find.
    pub(super) fn frontend(
        &mut self,
        frame: &[u8],
        next: Option<&str>,
        due: Option<Due>,
    ) -> Message {
        let kind = frame[0];
        match kind {
            b'Q' => {
                let label = self.control(&query_text(frame).unwrap_or_default(), next, due);
                self.begin(label);
                self.sending = false;
                return self.sent(kind);
            }
            b'P' => {
                let mut texts = texts(frame);
                let (statement, text) = (texts.next(), texts.next());
                let name = name_of(&text.unwrap_or_default());
                if !self.sending {
                    self.begin(format!("prepare {name}"));
                }
                self.prepared.insert(statement.unwrap_or_default(), name);
            }
            b'B' => {
                let name = self.bound(frame).unwrap_or_else(|| "unknown".to_owned());
                let label = idle(name, due);
                self.last.clone_from(&label);
                if !self.sending {
                    self.begin(label);
                }
            }
            b'C' if !self.sending => self.begin("close".to_owned()),
            _ if !self.sending => self.begin("other".to_owned()),
            _ => {}
        }
        self.sending = kind != b'S';
        self.sent(kind)
    }

    fn sent(&mut self, kind: u8) -> Message {
        self.open.back_mut().unwrap().message('>', kind)
    }

    /// The label of a simple query.
    fn control(&mut self, text: &str, next: Option<&str>, due: Option<Due>) -> String {
        let words = words(text);
        match (first_word(text).as_str(), next) {
            ("begin", Some(next)) => {
                "begin".clone_into(&mut self.last);
                idle(format!("begin before {next}"), due)
            }
            ("begin", None) => {
                let label = match due {
                    Some(due) if !due.expired => "begin (idle)",
                    _ => "begin",
                };
                label.clone_into(&mut self.last);
                label.to_owned()
            }
            ("set", Some(next)) => idle(format!("set before {next}"), due),
            (word @ ("commit" | "rollback" | "savepoint" | "release" | "set" | "reset"), _) => {
                format!("{word} after {}", self.last)
            }
            _ => {
                self.last.clone_from(&words);
                words
            }
        }
    }

    /// A message from PostgreSQL.
    pub(super) fn backend(&mut self, frame: &[u8]) -> Message {
        let kind = frame[0];
        if kind == b'A' {
            return Message {
                name: Some("notification < NotificationResponse".to_owned()),
                exchange: 0,
                ready: false,
            };
        }
        let Some(exchange) = self.open.front_mut() else {
            // Unasked for: a shutdown's error, a changed setting.
            return Message {
                name: None,
                exchange: 0,
                ready: false,
            };
        };
        let message = exchange.message('<', kind);
        if kind == b'Z' {
            self.open.pop_front();
        }
        message
    }
}

/// A poll that will find nothing is the same as all its like.
fn idle(name: String, due: Option<Due>) -> String {
    let works = match (name.rsplit(' ').next().unwrap_or_default(), due) {
        ("delivery_claim", Some(due)) => due.ready,
        ("delivery_suspect_due", Some(due)) => due.suspect,
        ("delivery_expired", Some(due)) => due.expired,
        ("emitted_claim", Some(due)) => due.emitted,
        ("uncertain_claim", Some(due)) => due.uncertain,
        _ => true,
    };
    if works {
        name
    } else {
        format!("{name} (idle)")
    }
}

/// The strings of a frame; those behind the first binary field mean nothing.
fn texts(frame: &[u8]) -> impl Iterator<Item = String> + '_ {
    frame
        .get(5..)
        .unwrap_or_default()
        .split(|byte| *byte == 0)
        .map(|text| String::from_utf8_lossy(text).into_owned())
}

fn query_text(frame: &[u8]) -> Option<String> {
    (*frame.first()? == b'Q').then(|| texts(frame).next())?
}

fn first_word(text: &str) -> String {
    let word = text
        .split(|c: char| !c.is_alphanumeric())
        .find(|word| !word.is_empty());
    word.unwrap_or_default().to_ascii_lowercase()
}

/// The name in the head of a file of `src/store/sql`, or the first words.
fn name_of(text: &str) -> String {
    let head = text
        .strip_prefix("-- ")
        .and_then(|rest| rest.split_once(':'));
    match head {
        Some((name, _)) if !name.contains(' ') => name.to_owned(),
        _ => words(text),
    }
}

fn words(text: &str) -> String {
    let text: Vec<&str> = text.split_whitespace().take(4).collect();
    let text: String = text.join(" ").to_ascii_lowercase();
    text.chars()
        .filter(|c| !"'\"/#<>".contains(*c))
        .take(60)
        .collect()
}

fn kind_name(direction: char, kind: u8) -> String {
    match (direction, kind) {
        ('>', b'*') => "Startup",
        ('>', b'Q') => "Query",
        ('>', b'P') => "Parse",
        ('>', b'B') => "Bind",
        ('>', b'D') => "Describe",
        ('>', b'E') => "Execute",
        ('>', b'S') => "Sync",
        ('>', b'C') => "Close",
        ('<', b'R') => "Authentication",
        ('<', b'S') => "ParameterStatus",
        ('<', b'K') => "BackendKeyData",
        ('<', b'Z') => "ReadyForQuery",
        ('<', b'1') => "ParseComplete",
        ('<', b'2') => "BindComplete",
        ('<', b'3') => "CloseComplete",
        ('<', b't') => "ParameterDescription",
        ('<', b'T') => "RowDescription",
        ('<', b'n') => "NoData",
        ('<', b'D') => "DataRow",
        ('<', b'C') => "CommandComplete",
        ('<', b'E') => "ErrorResponse",
        ('<', b'N') => "NoticeResponse",
        ('<', b'I') => "EmptyQueryResponse",
        _ => return char::from(kind).to_string(),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, body: &str) -> Vec<u8> {
        let mut frame = vec![kind];
        frame.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        frame.extend(body.as_bytes());
        frame
    }

    fn name(message: Message) -> String {
        message.name.unwrap_or_default()
    }

    #[test]
    fn pipelined_statements_keep_their_own_answers() {
        let mut on = Dialogue::new();
        assert_eq!(name(on.startup()), "connect > Startup");
        assert_eq!(
            name(on.backend(&frame(b'Z', "I"))),
            "connect < ReadyForQuery"
        );
        on.frontend(
            &frame(b'P', "s0\0-- delivery_lock: locks\nSELECT\0"),
            None,
            None,
        );
        on.frontend(&frame(b'S', ""), None, None);
        assert_eq!(
            name(on.backend(&frame(b'1', ""))),
            "prepare delivery_lock < ParseComplete"
        );
        on.backend(&frame(b'Z', "I"));

        let bind = frame(b'B', "\0s0\0");
        assert_eq!(on.peeked(&bind).as_deref(), Some("delivery_lock"));
        let begin = frame(b'Q', "BEGIN; SET LOCAL x = 1\0");
        let message = on.frontend(&begin, Some("delivery_lock"), None);
        assert_eq!(name(message), "begin before delivery_lock > Query");
        on.frontend(&bind, None, None);
        on.frontend(&frame(b'E', ""), None, None);
        assert_eq!(
            name(on.frontend(&frame(b'S', ""), None, None)),
            "delivery_lock > Sync"
        );
        let done = frame(b'C', "BEGIN\0");
        assert_eq!(
            name(on.backend(&done)),
            "begin before delivery_lock < CommandComplete"
        );
        assert_eq!(
            name(on.backend(&done)),
            "begin before delivery_lock < CommandComplete 2"
        );
        assert_eq!(on.backend(&done).name, None);
        on.backend(&frame(b'Z', "T"));
        assert_eq!(
            name(on.backend(&frame(b'2', ""))),
            "delivery_lock < BindComplete"
        );
        on.backend(&frame(b'Z', "T"));
        let commit = on.frontend(&frame(b'Q', "COMMIT\0"), None, None);
        assert_eq!(name(commit), "commit after delivery_lock > Query");
    }
}
