//! How much work of a handler may begin: priorities and caps.

use std::time::Duration;

use super::Pattern;

/// Which of a handler's due deliveries are taken first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// 70 % of what is claimed while all three are waiting.
    High,
    /// 20 %.
    #[default]
    Normal,
    /// 10 %.
    Low,
}

impl Priority {
    /// From the first to the last.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// Its share of what is claimed, against that of the others.
    pub const fn weight(self) -> u16 {
        match self {
            Self::High => 7,
            Self::Normal => 2,
            Self::Low => 1,
        }
    }

    /// How it stands in `delivery.priority`, and its place in [`Priority::ALL`].
    pub const fn number(self) -> i16 {
        match self {
            Self::High => 0,
            Self::Normal => 1,
            Self::Low => 2,
        }
    }

    /// As it stands in `delivery.priority`.
    pub fn stored(number: i16) -> Self {
        match number {
            0 => Self::High,
            2 => Self::Low,
            _ => Self::Normal,
        }
    }

    /// The word of the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// Something of each priority, in the order of [`Priority::ALL`].
pub type ByPriority<T> = [T; 3];

/// Divides a claim among the priorities that may have something waiting, by their weights.
///
/// The counts add up to `total`. Each is its exact share rounded up or down; `draw`, uniform in
/// `0.0..1.0`, decides which, so that a share below one comes round as often as it should: of
/// claims of one, every tenth is for [`Priority::Low`].
pub fn split(total: u16, waiting: ByPriority<bool>, draw: f64) -> ByPriority<u16> {
    let weights = Priority::ALL.map(|p| {
        let waits = waiting.get(usize::from(p as u8)).copied().unwrap_or(false);
        if waits { f64::from(p.weight()) } else { 0.0 }
    });
    let sum: f64 = weights.iter().sum();
    let mut counts = [0; 3];
    if sum <= 0.0 {
        return counts;
    }
    // Cut at whole numbers, shifted by the draw: systematic sampling.
    let mut reached = 0.0;
    let mut given = 0;
    let last = weights.iter().rposition(|w| *w > 0.0).unwrap_or(0);
    for (place, (count, weight)) in counts.iter_mut().zip(weights).enumerate() {
        reached += f64::from(total) * weight / sum;
        let end = if place >= last {
            total
        } else {
            whole(reached + draw.clamp(0.0, 0.999_999)).min(total)
        };
        *count = end.saturating_sub(given);
        given = given.max(end);
    }
    counts
}

/// The whole part of a small number.
fn whole(value: f64) -> u16 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is below 65,536, and not negative"
    )]
    let whole = value.clamp(0.0, f64::from(u16::MAX)) as u16;
    whole
}

/// The priorities of one handler's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Priorities {
    /// Of what no pattern names.
    pub rest: Priority,
    /// The first pattern that takes an event gives its priority.
    pub named: Vec<(Pattern, Priority)>,
}

impl Priorities {
    /// The same for all events.
    pub fn all(rest: Priority) -> Self {
        Self {
            rest,
            named: Vec::new(),
        }
    }

    /// The priority of an event.
    pub fn of(&self, source: &str, event_type: Option<&str>) -> Priority {
        self.named
            .iter()
            .find(|(pattern, _)| pattern.takes(source, event_type))
            .map_or(self.rest, |(_, priority)| *priority)
    }

    /// Which priorities its events can have.
    pub fn known(&self) -> ByPriority<bool> {
        Priority::ALL.map(|p| self.rest == p || self.named.iter().any(|(_, named)| *named == p))
    }
}

/// At most so many in any such time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many, 1 or more.
    pub count: u32,
    /// In which time.
    pub per: Duration,
}

impl Rate {
    /// Most tokens that a quiet time saves up: a twentieth, so that claims can be of several.
    fn depth(self) -> f64 {
        f64::from((self.count / 20).max(1))
    }

    /// Tokens per second. With a full bucket at its beginning, no time of `per` gives more than
    /// `count`: what the bucket saves is taken off what flows in.
    fn refill(self) -> f64 {
        (f64::from(self.count) - self.depth() + 1.0) / self.per.as_secs_f64()
    }
}

/// What a handler may have under way over all nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cap {
    /// Leases at once.
    pub in_flight: Option<u32>,
    /// Tries begun.
    pub rate: Option<Rate>,
}

/// How far a cap is used, at a moment of the database's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Leases that nobody has settled or reaped.
    pub leased: u32,
    /// Tokens left when they were last counted.
    pub tokens: f64,
    /// Time since then.
    pub since: Duration,
}

/// What may be claimed now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowed {
    /// How many.
    pub count: u16,
    /// Tokens before they are taken.
    pub tokens: f64,
    /// When a rate is what stands in the way: how long until the next token.
    pub wait: Option<Duration>,
}

/// Tokens as a claim has left them, for those of its leases under which nothing is begun.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taken {
    /// The rate that they are of.
    pub rate: Rate,
    /// What was left.
    pub left: f64,
    /// What had ever been given back before.
    pub given_back: f64,
}

impl Taken {
    /// How much of so many tokens comes back, the time since the claim and what was ever given back being as they are
    /// now. As if they had never been taken: then the bucket would have been full earlier, and what flowed in since
    /// would be lost. So no more than was free even if nobody else has taken anything, and a rate holds for what is
    /// begun: with whole tokens a time would have what it saved twice.
    pub fn back(&self, count: u16, since: Duration, given_back: f64) -> f64 {
        let since = self.rate.refill() * since.as_secs_f64();
        let most = self.left + since + (given_back - self.given_back).max(0.0);
        f64::from(count).min(self.rate.depth() - most).max(0.0)
    }
}

impl Cap {
    /// Whether there is anything to keep.
    pub fn is_none(&self) -> bool {
        self.in_flight.is_none() && self.rate.is_none()
    }

    /// Decides how many of the wanted may be claimed.
    pub fn allows(&self, wanted: u16, standing: Standing) -> Allowed {
        let free = self.in_flight.map_or(u16::MAX, |most| {
            u16::try_from(most.saturating_sub(standing.leased)).unwrap_or(u16::MAX)
        });
        let Some(rate) = self.rate else {
            return Allowed {
                count: wanted.min(free),
                tokens: 0.0,
                wait: None,
            };
        };
        // A clock that was set back gives nothing.
        let saved = standing.tokens.max(0.0) + rate.refill() * standing.since.as_secs_f64();
        let tokens = saved.min(rate.depth());
        let count = wanted.min(free).min(whole(tokens));
        let short = 1.0 - (tokens - f64::from(count));
        Allowed {
            count,
            tokens,
            wait: (count < wanted.min(free))
                .then(|| Duration::from_secs_f64((short / rate.refill()).max(0.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_claim_is_divided_seventy_twenty_ten() {
        assert_eq!(split(50, [true; 3], 0.5), [35, 10, 5]);
        assert_eq!(split(50, [false, true, true], 0.0), [0, 33, 17]);
        assert_eq!(split(50, [false, false, true], 0.9), [0, 0, 50]);
        assert_eq!(split(50, [false; 3], 0.9), [0, 0, 0]);
    }

    #[test]
    fn every_tenth_claim_of_one_is_for_the_lowest() {
        let mut given = [0_u16; 3];
        for n in 0..1_000 {
            let counts = split(1, [true; 3], (f64::from(n) + 0.5) / 1_000.0);
            for (sum, count) in given.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        assert_eq!(given, [700, 200, 100]);
    }

    #[test]
    fn the_first_pattern_that_takes_an_event_gives_its_priority() {
        let pattern = |text: &str| Pattern::parse(text).unwrap();
        let priorities = Priorities {
            rest: Priority::Normal,
            named: vec![
                (pattern("a:x.*"), Priority::High),
                (pattern("a:*"), Priority::Low),
            ],
        };
        assert_eq!(priorities.of("a", Some("x.y")), Priority::High);
        assert_eq!(priorities.of("a", None), Priority::Low);
        assert_eq!(priorities.of("b", Some("x.y")), Priority::Normal);
        assert_eq!(priorities.known(), [true; 3]);
        assert_eq!(Priorities::all(Priority::Low).known(), [false, false, true]);
    }

    /// Claims at these moments (ms), each wanting so many; returns when each was granted.
    fn granted(cap: Cap, steps: &[(u32, u16)]) -> Vec<u64> {
        let (mut tokens, mut at) = (0.0, None);
        let mut now = 0_u64;
        let mut moments = Vec::new();
        for (later, wanted) in steps {
            now += u64::from(*later);
            let since = at.map_or(Duration::from_hours(1_000), |at| {
                Duration::from_millis(now - at)
            });
            let standing = Standing {
                leased: 0,
                tokens,
                since,
            };
            let allowed = cap.allows(*wanted, standing);
            moments.extend(std::iter::repeat_n(now, usize::from(allowed.count)));
            tokens = allowed.tokens - f64::from(allowed.count);
            at = Some(now);
        }
        moments
    }

    /// Claims as in [`granted`], of which some begin nothing and give back after a while (ms); returns when each try
    /// began.
    fn begun(rate: Rate, steps: &[(u32, u16, Option<u32>)]) -> Vec<u64> {
        let cap = Cap {
            rate: Some(rate),
            in_flight: None,
        };
        let millis = |from: u64, to: u64| Duration::from_millis(to - from);
        let (mut tokens, mut at, mut given_back) = (0.0, None, 0.0);
        let (mut now, mut moments) = (0_u64, Vec::new());
        let mut out: Vec<(u64, u64, u16, Taken)> = Vec::new();
        for (later, wanted, unbegun) in steps {
            now += u64::from(*later);
            out.sort_by_key(|(due, ..)| *due);
            while let Some((due, claimed, count, taken)) = out.first().copied() {
                if due > now {
                    break;
                }
                let back = taken.back(count, millis(claimed, due), given_back);
                tokens += back;
                given_back += back;
                out.remove(0);
            }
            let since = at.map_or(Duration::from_hours(1_000), |at| millis(at, now));
            let standing = Standing {
                leased: 0,
                tokens,
                since,
            };
            let allowed = cap.allows(*wanted, standing);
            tokens = allowed.tokens - f64::from(allowed.count);
            at = Some(now);
            match unbegun {
                Some(after) => {
                    let taken = Taken {
                        rate,
                        left: tokens,
                        given_back,
                    };
                    out.push((now + u64::from(*after), now, allowed.count, taken));
                }
                None => moments.extend(std::iter::repeat_n(now, usize::from(allowed.count))),
            }
        }
        moments
    }

    #[test]
    fn what_comes_back_at_once_comes_back_whole_and_what_was_saved_since_is_not_saved_twice() {
        let taken = Taken {
            rate: Rate {
                count: 100,
                per: Duration::from_secs(96),
            },
            left: 1.0,
            given_back: 7.0,
        };
        // Five at the most, one a second.
        let back =
            |since_s: u64, given_back| taken.back(3, Duration::from_secs(since_s), given_back);
        assert!((back(0, 7.0) - 3.0).abs() < 1e-9);
        assert!((back(2, 7.0) - 2.0).abs() < 1e-9);
        assert!((back(2, 8.0) - 1.0).abs() < 1e-9);
        assert!(back(9, 7.0).abs() < 1e-9);
    }

    proptest! {
        // However claims come, and whatever of them is given back when, no window of `per` has more begun than `count`.
        #[test]
        fn no_window_of_a_rate_has_more_begun_whatever_is_given_back(
            count in 1_u32..300, per_ms in 50_u64..5_000,
            steps in prop::collection::vec((0_u32..400, 1_u16..100, prop::option::of(0_u32..2_000)), 1..120),
        ) {
            let rate = Rate { count, per: Duration::from_millis(per_ms) };
            let moments = begun(rate, &steps);
            for (first, from) in moments.iter().enumerate() {
                let within = moments[first..].iter().take_while(|at| **at < from + per_ms).count();
                prop_assert!(within <= count as usize, "{within} of {count} from {from} ms");
            }
        }

        #[test]
        fn a_split_is_whole_and_each_share_is_rounded_up_or_down(
            total in 0_u16..2_000, waiting in any::<[bool; 3]>(), draw in 0.0_f64..1.0
        ) {
            let counts = split(total, waiting, draw);
            let sum: u16 = Priority::ALL.iter().zip(waiting).filter(|(_, w)| *w).map(|(p, _)| p.weight()).sum();
            let given: u16 = counts.iter().sum();
            prop_assert_eq!(given, if sum == 0 { 0 } else { total });
            for ((priority, waits), count) in Priority::ALL.iter().zip(waiting).zip(counts) {
                let exact = if waits { f64::from(total) * f64::from(priority.weight()) / f64::from(sum.max(1)) } else { 0.0 };
                prop_assert!((f64::from(count) - exact).abs() < 1.0 + 1e-9, "{count} of {exact}");
                prop_assert!(waits || count == 0);
            }
        }

        // However claims come, no window of `per` holds more than `count`.
        #[test]
        fn no_window_of_a_rate_holds_more_than_its_count(
            count in 1_u32..300, per_ms in 50_u64..5_000,
            steps in prop::collection::vec((0_u32..400, 1_u16..100), 1..120),
        ) {
            let per = Duration::from_millis(per_ms);
            let cap = Cap { rate: Some(Rate { count, per }), in_flight: None };
            let moments = granted(cap, &steps);
            for (first, from) in moments.iter().enumerate() {
                let within = moments[first..].iter().take_while(|at| **at < from + per_ms).count();
                prop_assert!(within <= count as usize, "{within} of {count} from {from} ms");
            }
        }

        // Whoever comes when told to wait finds a token, and nobody waits for nothing.
        #[test]
        fn after_the_wait_there_is_a_token(count in 1_u32..300, per_ms in 50_u64..5_000, tokens in 0.0_f64..1.0) {
            let cap = Cap { rate: Some(Rate { count, per: Duration::from_millis(per_ms) }), in_flight: None };
            let now = Standing { leased: 0, tokens, since: Duration::ZERO };
            let wait = cap.allows(1, now).wait.unwrap();
            let later = Standing { since: wait + Duration::from_micros(1), ..now };
            prop_assert_eq!(cap.allows(1, later).count, 1);
        }

        #[test]
        fn leases_and_claims_together_never_pass_the_cap(
            most in 1_u32..100, leased in 0_u32..200, wanted in 0_u16..100
        ) {
            let cap = Cap { in_flight: Some(most), rate: None };
            let allowed = cap.allows(wanted, Standing { leased, tokens: 0.0, since: Duration::ZERO });
            prop_assert!(allowed.count <= wanted);
            prop_assert!(allowed.count == 0 || leased + u32::from(allowed.count) <= most);
            prop_assert!(leased >= most || allowed.count == wanted.min(u16::try_from(most - leased).unwrap()));
        }
    }
}
