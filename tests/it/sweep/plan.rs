//! Which crash points there are: the messages that every golden run has, times cuts, times kills.

use std::collections::HashSet;

use super::lane::Lane;
use super::point::{Cut, Kill, Point, Spot};
use super::scenario::Scenario;

/// The messages of a scenario, in the order in which they came. Only what is there in each of so
/// many golden runs counts, so that later runs meet it too.
pub(super) async fn messages(lane: &mut Lane, scenario: Scenario, goldens: usize) -> Vec<Spot> {
    let mut messages = golden(lane, scenario, goldens, false).await;
    // Processes that begin show what a connection begins with. Of the others', first statements
    // count, since they are prepared in the middle of work.
    if !scenario.is_of_a_process() {
        messages.retain(|spot| !spot.is_of_a_new_connection());
        let cold = golden(lane, scenario, goldens.min(2), true).await;
        messages.extend(cold.into_iter().filter(|spot| {
            spot.name.contains(" prepare ")
                && !spot.name.contains(" prepare select current_setting")
        }));
    }
    messages.retain(|spot| spot.occurrence == 1 || !spot.is_like_the_first());
    // The first and the last message stand for the preparing of a statement.
    messages.retain(|spot| {
        !spot.name.contains(" prepare ")
            || ["> Parse", "< ReadyForQuery"]
                .iter()
                .any(|end| spot.name.ends_with(end))
    });
    messages
}

async fn golden(lane: &mut Lane, scenario: Scenario, times: usize, cold: bool) -> Vec<Spot> {
    let mut common: Option<Vec<Spot>> = None;
    for _ in 0..times {
        let mut seen = lane.golden(scenario, cold).await;
        seen.retain(|spot| scenario.covers(spot));
        common = Some(match common {
            None => seen,
            Some(mut before) => {
                let seen: HashSet<Spot> = seen.into_iter().collect();
                before.retain(|spot| seen.contains(spot));
                before
            }
        });
    }
    common.unwrap_or_default()
}

impl Spot {
    /// One poll that finds nothing is like another, and so are connections while they are made.
    fn is_like_the_first(&self) -> bool {
        self.is_of_a_new_connection()
            || [
                "(idle)",
                " delivery_stray ",
                " flow_switches ",
                " gauges ",
                " lane_headless ",
                " noti",
                " operation_ended ",
                " operation_read ",
            ]
            .iter()
            .any(|text| self.name.contains(text))
    }

    /// Exchange, direction and type.
    fn parts(&self) -> (&str, bool, &str) {
        let (name, down) = match self.name.rsplit_once(" > ") {
            Some((name, _)) => (name, true),
            None => (
                self.name.rsplit_once(" < ").map_or("", |(name, _)| name),
                false,
            ),
        };
        (
            name,
            down,
            self.name.get(name.len() + 3..).unwrap_or_default(),
        )
    }
}

/// Every cut and every kill at every message, each combination of bytes and deaths once:
///
/// - Of the messages to PostgreSQL in one exchange, "executed, answer lost" is the same for all:
///   the last one stands for them.
/// - "Forwarded, the rest lost" is, for an answer, what "not forwarded" is for the next answer of
///   its exchange: of these only the last one's is run.
/// - A process that is killed sees no difference between the end of a connection and its reset.
pub(super) fn points(scenario: Scenario, messages: &[Spot]) -> Vec<Point> {
    let mut points = Vec::new();
    for spot in messages {
        let (_, down, kind) = spot.parts();
        let last = matches!(
            (down, kind),
            (true, "Query" | "Sync" | "Startup" | "Parse") | (false, "ReadyForQuery")
        );
        for cut in Cut::ALL {
            for kill in scenario.kills() {
                let doubled = match cut {
                    Cut::DropReply => !last && !spot.name.starts_with("notification"),
                    Cut::Reset => kill == Kill::Own,
                    _ => false,
                };
                if !doubled {
                    points.push(Point {
                        scenario: scenario.name().to_owned(),
                        spot: spot.clone(),
                        cut,
                        kill,
                    });
                }
            }
        }
    }
    points
}
