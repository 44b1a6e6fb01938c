//! What happens while the load is on, phase by phase.

use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use super::load::Balancer;
use super::{Course, Phase};
use crate::support::{FakeClock, Node, TestApp};

/// How late the balancer is: for so long it sends to a node that is ending or gone.
const LATE: Duration = Duration::from_secs(1);

/// What was done, and when.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) what: String,
}

struct Diary {
    course: Course,
    events: Vec<Event>,
}

impl Diary {
    fn note(&mut self, what: impl Into<String>) {
        let (at, what) = (self.course.elapsed(), what.into());
        eprintln!("soak: {:>5.0} s  {what}", at.as_secs_f64());
        self.events.push(Event { at, what });
    }
}

/// Runs until the load is over.
pub(super) async fn run(
    course: Course,
    app: &mut TestApp,
    second: &mut Node,
    balancer: &Balancer,
    clock: Option<&FakeClock>,
) -> Vec<Event> {
    let mut diary = Diary {
        course,
        events: Vec::new(),
    };
    sleep_until(course.end_of(Phase::Baseline).into()).await;

    let pin = app.db.client().await;
    pin.batch_execute(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM oncehook.handler",
    )
    .await
    .unwrap();
    diary.note("a snapshot is taken and held");
    sleep_until(course.end_of(Phase::Pinned).into()).await;
    pin.batch_execute("COMMIT").await.unwrap();
    diary.note("the snapshot is let go");
    drop(pin);
    sleep_until(course.end_of(Phase::Recovery).into()).await;

    // Three times in a long run, once in a short one.
    every(course, Phase::Restarts, 3, async || {
        restart(app, 0, balancer, &mut diary).await;
        restart(second, 1, balancer, &mut diary).await;
    })
    .await;
    let mut turn = 0;
    every(course, Phase::Kills, 4, async || {
        let node = if turn % 2 == 0 {
            &mut *second
        } else {
            &mut **app
        };
        kill(node, 1 - turn % 2, balancer, &mut diary).await;
        turn += 1;
    })
    .await;
    if let Some(clock) = clock {
        let mut steps = ["+3600", "-3600", "+0"].into_iter();
        every(course, Phase::Clock, 3, async || {
            if let Some(step) = steps.next() {
                clock.step(step);
                diary.note(format!("the clock of node 1 steps to {step} s"));
            }
        })
        .await;
        // In a short phase not all steps have come.
        clock.step("+0");
    }
    sleep_until(course.end().into()).await;
    diary.events
}

/// Does something up to so many times, spread over a phase, and waits for its end.
async fn every(course: Course, phase: Phase, times: u32, mut action: impl AsyncFnMut()) {
    let (begin, end) = (Instant::now(), course.end_of(phase));
    for n in 0..times {
        let due = begin + (end - begin) * n / times;
        sleep_until(due.into()).await;
        if Instant::now() < end {
            action().await;
        }
    }
    sleep_until(end.into()).await;
}

/// As a deploy: the node is told to end, drains, ends and is started anew.
async fn restart(node: &mut Node, number: usize, balancer: &Balancer, diary: &mut Diary) {
    let begin = Instant::now();
    node.sigterm();
    sleep(LATE).await;
    balancer.set_down(number);
    let status = node.exit().await;
    node.restart().await;
    balancer.set_up(number, node.pid());
    diary.note(format!(
        "node {} was replaced in {:.1} s ({status})",
        number + 1,
        begin.elapsed().as_secs_f64()
    ));
    assert_eq!(status.code(), Some(0), "{}", node.output());
}

async fn kill(node: &mut Node, number: usize, balancer: &Balancer, diary: &mut Diary) {
    node.kill9();
    sleep(LATE).await;
    balancer.set_down(number);
    node.restart().await;
    balancer.set_up(number, node.pid());
    diary.note(format!("node {} was killed and is back", number + 1));
}
