//! Who may ask the API listener for what: roles, tokens, and the names that it answers to without one.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::SecretText;

/// What a token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look: every GET, payloads included.
    Read,
    /// Act as a person does: replay, resolve, pause and the like.
    Operate,
    /// Submit operations.
    Submit,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Submit];

    /// The word in the database, on the command line and in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Submit => "submit",
        }
    }

    /// The role of this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word)
    }

    /// What a request needs, by method and decoded path. Whatever nobody thought of is a command, so a
    /// new route is never without a check.
    ///
    /// Any one of those that come back will do. Who may submit an operation may ask for its own; whose it
    /// is, the route itself looks at.
    pub fn needed(method: &str, path: &str) -> &'static [Self] {
        let below = path
            .strip_prefix("/v1/operations/")
            .filter(|below| !below.is_empty());
        let is_one = below.is_some_and(|below| !below.contains('/'));
        let is_key = below
            .and_then(|below| below.split_once('/'))
            .is_some_and(|(operation, below)| !operation.is_empty() && below.starts_with("keys/"));
        match method {
            "GET" | "HEAD" if is_one || is_key => &[Self::Read, Self::Submit],
            "GET" | "HEAD" => &[Self::Read],
            "POST" if is_one => &[Self::Submit],
            _ => &[Self::Operate],
        }
    }
}

/// The name of a client: in the audit, and before its idempotency keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientName(String);

impl ClientName {
    /// Whoever comes where there are no tokens. No token has this name.
    pub const LOCAL: &'static str = "local";

    /// Checks a name: 1 to 64 of a-z, 0-9, - and _, of which - and _ do not come first.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        if text == Self::LOCAL {
            return Err(
                "\"local\" stands for whoever comes where there are no tokens: choose another name"
                    .to_owned(),
            );
        }
        if text.is_empty()
            || text.len() > 64
            || text.starts_with(['-', '_'])
            || !text.chars().all(fits)
        {
            return Err(
                "a client's name has 1 to 64 of the characters a-z, 0-9, - and _, and begins with a letter or a digit"
                    .to_owned(),
            );
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A token as its owner shows it: `oht_`, its public id, its secret. `Debug` prints the id alone.
#[derive(Clone)]
pub struct Token {
    id: i64,
    secret: [u8; 32],
}

impl Token {
    /// How every token begins, for whoever looks for leaked ones.
    pub const PREFIX: &'static str = "oht_";

    /// The token with this id and secret.
    pub fn new(id: i64, secret: [u8; 32]) -> Self {
        Self { id, secret }
    }

    /// Reads `oht_{id}_{64 hex digits}`.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(Self::PREFIX)?.split_once('_')?;
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(secret, &mut bytes).ok()?;
        Some(Self::new(id.parse().ok()?, bytes))
    }

    /// The token of an `Authorization` field; `None` where it holds something that is none of ours.
    ///
    /// # Errors
    ///
    /// [`Denied::Malformed`]: it begins as one of ours and is none.
    pub fn shown(field: &str) -> Result<Option<Self>, Denied> {
        let shown = field
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, shown)| shown.trim())
            .filter(|shown| shown.starts_with(Self::PREFIX));
        shown
            .map(|shown| Self::parse(shown).ok_or(Denied::Malformed))
            .transpose()
    }

    /// The public part.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// What is stored of the secret.
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.secret).into())
    }

    /// The whole of it, to be shown once.
    pub fn text(&self) -> SecretText {
        SecretText::new(format!(
            "{}{}_{}",
            Self::PREFIX,
            self.id,
            hex::encode(self.secret)
        ))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}_[redacted]", Self::PREFIX, self.id)
    }
}

/// SHA-256 of a token's secret. The secret is 32 random bytes, which nobody guesses: a salt or a slow
/// hash, as for a password, would protect nothing.
///
/// It has no equality, so that nothing compares it in a time that tells how far it was right:
///
/// ```compile_fail,E0369
/// # use oncehook::domain::access::Token;
/// let (a, b) = (Token::new(1, [1; 32]), Token::new(1, [2; 32]));
/// assert!(a.hash() == b.hash());
/// ```
///
/// ```
/// # use oncehook::domain::access::Token;
/// let (a, b) = (Token::new(1, [1; 32]), Token::new(1, [2; 32]));
/// assert!(a.hash().is_of(&a) && !a.hash().is_of(&b));
/// ```
#[derive(Clone)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// A hash read back from the database.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the hash of the token's secret, in a time that does not depend on the answer.
    pub fn is_of(&self, token: &Token) -> bool {
        self.0.ct_eq(&token.hash().0).into()
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hash]")
    }
}

/// What the database knows of a token.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its client.
    pub name: String,
    /// What it may be used for.
    pub roles: BTreeSet<Role>,
    /// Of its secret.
    pub hash: TokenHash,
    /// Whether it was ended.
    pub revoked: bool,
    /// How long it lasted when the database was asked; `None` where it has no end.
    pub left: Option<Duration>,
}

/// Why a request is answered 401. The answer is the same for all of them; the log tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// No token was shown.
    Missing,
    /// It begins as a token of ours and cannot be one.
    Malformed,
    /// No token has this id.
    Unknown,
    /// The id is right and the secret is not.
    WrongSecret,
    /// It was ended.
    Revoked,
    /// Its time is over.
    Expired,
}

impl Denied {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::Missing,
        Self::Malformed,
        Self::Unknown,
        Self::WrongSecret,
        Self::Revoked,
        Self::Expired,
    ];

    /// The word in log and metrics.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::WrongSecret => "wrong-secret",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
        }
    }
}

/// Who asks, once it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    name: String,
    roles: BTreeSet<Role>,
}

impl Caller {
    /// Whoever comes where there are no tokens: it may do everything.
    pub fn local() -> Self {
        Self {
            name: ClientName::LOCAL.to_owned(),
            roles: Role::ALL.into(),
        }
    }

    /// The client's name; it scopes idempotency keys.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who acts, for the audit.
    pub fn actor(&self) -> String {
        format!("api:{}", self.name)
    }

    /// Whether it has the role.
    pub fn may(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

/// Judges a token by what the database said of its id `age` ago.
///
/// # Errors
///
/// [`Denied`]: why it is not accepted.
pub fn admit(shown: &Token, known: Option<&Known>, age: Duration) -> Result<Caller, Denied> {
    let known = known.ok_or(Denied::Unknown)?;
    if !known.hash.is_of(shown) {
        return Err(Denied::WrongSecret);
    }
    if known.revoked {
        return Err(Denied::Revoked);
    }
    if known.left.is_some_and(|left| left <= age) {
        return Err(Denied::Expired);
    }
    Ok(Caller {
        name: known.name.clone(),
        roles: known.roles.clone(),
    })
}

/// Whether a `Host` names this machine itself, or the address that is listened on.
///
/// A page of another site can have its own name point to 127.0.0.1 (DNS rebinding) and is then, for the
/// browser, of one origin with us; but the name stays in `Host`.
pub fn is_own_host(host: &str, listening: SocketAddr) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let address = match name.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .and_then(|v6| v6.parse().ok())
            .map(IpAddr::V6),
        None => name.parse().ok().map(IpAddr::V4),
    };
    name.eq_ignore_ascii_case("localhost")
        || ["127.0.0.1", "[::1]"].contains(&name)
        || address == Some(listening.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: i64) -> Token {
        Token::new(id, [7; 32])
    }

    fn known() -> Known {
        Known {
            name: "shop".to_owned(),
            roles: [Role::Read].into(),
            hash: token(1).hash(),
            revoked: false,
            left: None,
        }
    }

    #[test]
    fn a_token_is_read_as_it_is_written_and_never_printed() {
        let text = token(12).text().expose().to_owned();
        assert_eq!(text, format!("oht_12_{}", "07".repeat(32)));
        let read = Token::parse(&text).unwrap();
        assert_eq!((read.id(), read.secret), (12, [7; 32]));
        let printed = format!("{read:?} {:?} {:?}", read.hash(), read.text());
        assert_eq!(printed, "oht_12_[redacted] [hash] [redacted]");
        for wrong in [
            "",
            "oht_",
            "oht_12",
            "oht_12_",
            "oht__07",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}0"),
            &text.replace("12", "-1"),
            &text.replace("12", "+1"),
            &text.replace("12", "99999999999999999999"),
            &text.replace("07", "0g"),
        ] {
            assert!(Token::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn only_what_begins_as_ours_is_taken_for_a_token() {
        let text = token(12).text().expose().to_owned();
        for field in [format!("Bearer {text}"), format!("bearer   {text} ")] {
            assert_eq!(Token::shown(&field).unwrap().unwrap().id(), 12);
        }
        for other in ["", "Bearer", "Bearer abc", "Basic b2h0Xzo=", text.as_str()] {
            assert!(Token::shown(other).unwrap().is_none(), "{other}");
        }
        let broken = Token::shown("Bearer oht_12_x").unwrap_err();
        assert_eq!(broken, Denied::Malformed);
    }

    #[test]
    fn a_token_is_judged_by_secret_revocation_and_end() {
        let second = Duration::from_secs(1);
        let caller = admit(&token(1), Some(&known()), second).unwrap();
        assert_eq!((caller.name(), caller.actor()), ("shop", "api:shop".into()));
        assert!(caller.may(Role::Read) && !caller.may(Role::Operate));
        let other = Token::new(1, [8; 32]);
        let revoked = Known {
            revoked: true,
            ..known()
        };
        let lasting = |left| Known {
            left: Some(left),
            ..known()
        };
        for (shown, known, expected) in [
            (token(1), None, Denied::Unknown),
            (other.clone(), Some(known()), Denied::WrongSecret),
            // Who cannot show the secret does not learn what became of the token.
            (other, Some(revoked.clone()), Denied::WrongSecret),
            (token(1), Some(revoked), Denied::Revoked),
            (token(1), Some(lasting(Duration::ZERO)), Denied::Expired),
            (token(1), Some(lasting(second)), Denied::Expired),
        ] {
            let denied = admit(&shown, known.as_ref(), second).unwrap_err();
            assert_eq!(denied, expected);
        }
        assert!(admit(&token(1), Some(&lasting(second * 2)), second).is_ok());
    }

    #[test]
    fn whatever_is_not_known_to_be_less_is_a_command() {
        for (method, path, role) in [
            ("GET", "/v1/events", &[Role::Read][..]),
            ("GET", "/metrics", &[Role::Read]),
            ("GET", "/v1/operations", &[Role::Read]),
            ("GET", "/v1/operations/", &[Role::Read]),
            ("HEAD", "/v1/operations/pay", &[Role::Read, Role::Submit]),
            (
                "GET",
                "/v1/operations/pay/keys/a/b",
                &[Role::Read, Role::Submit],
            ),
            ("GET", "/v1/operations/pay/other/a", &[Role::Read]),
            ("GET", "/v1/operations//keys/a", &[Role::Read]),
            ("POST", "/v1/operations/pay", &[Role::Submit]),
            ("POST", "/v1/operations/", &[Role::Operate]),
            (
                "POST",
                "/v1/operations/pay/keys/1/resolve",
                &[Role::Operate],
            ),
            ("POST", "/v1/events/a/b/replay", &[Role::Operate]),
            ("PUT", "/v1/operations/pay", &[Role::Operate]),
            ("DELETE", "/anything", &[Role::Operate]),
            ("get", "/v1/events", &[Role::Operate]),
        ] {
            assert_eq!(Role::needed(method, path), role, "{method} {path}");
        }
    }

    #[test]
    fn a_client_has_a_name_of_its_own() {
        for name in ["a", "0", "shop-2_x", &"a".repeat(64)] {
            assert!(ClientName::parse(name).is_ok(), "{name}");
        }
        for name in ["", "local", "-a", "_a", "A", "a b", "é", &"a".repeat(65)] {
            assert!(ClientName::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_host_is_this_machine_or_the_address_listened_on() {
        let listening = "127.0.0.5:8081".parse().unwrap();
        for host in [
            "localhost",
            "LocalHost:1",
            "127.0.0.1",
            "127.0.0.1:8081",
            "[::1]",
            "[::1]:80",
            "127.0.0.5:9",
            "localhost:",
        ] {
            assert!(is_own_host(host, listening), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8081",
            "127.0.0.2",
            "evil.example:localhost",
            "localhost:80:80",
            "localhost:x",
            "user@localhost",
            "::1",
            "[::1",
            "[::2]",
            "[127.0.0.5]",
            "localhost ",
        ] {
            assert!(!is_own_host(host, listening), "{host}");
        }
        let v6 = "[::1:2]:80".parse().unwrap();
        assert!(is_own_host("[::1:2]:7", v6) && !is_own_host("::1:2", v6));
    }
}
