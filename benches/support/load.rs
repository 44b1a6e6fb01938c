//! The load generator: keep-alive connections on a thread of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::stripe::Requests;

/// In the paced form, a request sent this long after it was due counts as late.
const LATE: Duration = Duration::from_millis(5);

/// How requests follow one another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// The next when the answer is there.
    Closed,
    /// So many a second, whatever the answers.
    PerSecond(f64),
}

/// What was acknowledged.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) count: usize,
    pub(crate) elapsed: Duration,
    /// Time to each answer, sorted.
    pub(crate) times: Vec<Duration>,
    /// Sent late, because every connection waited for an answer.
    pub(crate) late: usize,
}

impl Answered {
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let at = (self.times.len() * percent / 100).min(self.times.len().saturating_sub(1));
        self.times.get(at).copied().unwrap_or_default()
    }
}

struct Shared {
    requests: Requests,
    next: AtomicUsize,
    began: Instant,
    until: Instant,
    pace: Pace,
}

/// Sends requests over so many connections until the time is over; each answer must be 200.
pub(crate) fn run(
    address: SocketAddr,
    connections: usize,
    requests: Requests,
    time: Duration,
    pace: Pace,
) -> Result<Answered> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut sockets = Vec::new();
        for _ in 0..connections {
            let socket = TcpStream::connect(address)
                .await
                .context("connect to the node")?;
            socket.set_nodelay(true)?;
            sockets.push(socket);
        }
        let began = Instant::now();
        let shared = Arc::new(Shared {
            requests,
            next: AtomicUsize::new(0),
            began,
            until: began + time,
            pace,
        });
        let mut tasks: JoinSet<Result<(Vec<Duration>, usize)>> = sockets
            .into_iter()
            .map(|socket| connection(socket, Arc::clone(&shared)))
            .collect();
        let mut times = Vec::new();
        let mut late = 0;
        while let Some(done) = tasks.join_next().await {
            let (more, more_late) = done??;
            times.extend(more);
            late += more_late;
        }
        let elapsed = began.elapsed();
        times.sort_unstable();
        Ok(Answered {
            count: times.len(),
            elapsed,
            times,
            late,
        })
    })
}

async fn connection(mut socket: TcpStream, shared: Arc<Shared>) -> Result<(Vec<Duration>, usize)> {
    let mut times = Vec::new();
    let mut late = 0;
    let mut answer = Vec::with_capacity(1_024);
    while Instant::now() < shared.until {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(request) = shared.requests.get(number) else {
            break;
        };
        if let Pace::PerSecond(rate) = shared.pace {
            let due = shared.began + Duration::from_secs_f64(as_f64(number) / rate);
            tokio::time::sleep_until(due.into()).await;
            late += usize::from(due.elapsed() > LATE);
        }
        let sent = Instant::now();
        socket.write_all(request).await?;
        read_answer(&mut socket, &mut answer).await?;
        times.push(sent.elapsed());
    }
    Ok((times, late))
}

async fn read_answer(socket: &mut TcpStream, answer: &mut Vec<u8>) -> Result<()> {
    answer.clear();
    loop {
        if socket.read_buf(answer).await? == 0 {
            bail!("the node closed a connection");
        }
        if let Some(length) = length(answer)
            && answer.len() >= length
        {
            break;
        }
    }
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        bail!("answered {}", String::from_utf8_lossy(answer));
    }
    Ok(())
}

/// Head and body together, once the head is there.
fn length(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(answer.get(..head)?).ok()?;
    let body = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let ours = name.eq_ignore_ascii_case("content-length");
        ours.then(|| value.trim().parse::<usize>().ok()).flatten()
    })?;
    Some(head + body)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "request numbers stay far below 2^53"
)]
pub(crate) fn as_f64(n: usize) -> f64 {
    n as f64
}
