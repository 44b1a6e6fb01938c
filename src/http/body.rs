//! Reads a body as it came over the wire, counting.
//!
//! actix's own extractors decode a compressed body and leave the raw stream unlimited, so the
//! limit, the deadline and the shared budget are ours. The loop waits for nothing but the stream:
//! while a reader waits for something else, actix takes the closed write side of a client that
//! has sent everything for a body cut short.

use std::sync::Arc;
use std::time::Duration;

use actix_web::error::PayloadError;
use actix_web::web::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::domain::{Digest, Refusal};

/// Granularity of the budget.
const UNIT_BYTES: usize = 1_024;

/// Allocated ahead for a declared length; the rest as it arrives, since a declaration is free.
const AHEAD_BYTES: usize = 64 << 10;

/// Bytes of all bodies being read, over all workers.
#[derive(Debug)]
pub(super) struct Budget {
    units: Arc<Semaphore>,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            units: Arc::new(Semaphore::new(units)),
        }
    }

    /// A share of nothing yet.
    fn share(&self) -> Share<'_> {
        Share {
            budget: self,
            held: None,
        }
    }
}

/// What one body holds of the budget, given back on drop.
#[derive(Debug)]
struct Share<'a> {
    budget: &'a Budget,
    held: Option<OwnedSemaphorePermit>,
}

impl Share<'_> {
    /// Holds enough for `bytes` in all, or says no without waiting: who waits for room keeps a
    /// connection and its sender busy, and nobody finishes.
    fn grow_to(&mut self, bytes: usize) -> bool {
        let held = self
            .held
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(UNIT_BYTES).saturating_sub(held);
        let Ok(more) = u32::try_from(more) else {
            return false;
        };
        let units = Arc::clone(&self.budget.units);
        let Ok(permit) = units.try_acquire_many_owned(more) else {
            return false;
        };
        match &mut self.held {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        true
    }
}

/// A whole body, holding its share of the budget until it is dropped.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Bytes,
    held: Option<OwnedSemaphorePermit>,
}

impl Body {
    /// The bytes, with the share given back: from here on the ingest queue counts them.
    pub(super) fn release(self) -> Bytes {
        drop(self.held);
        self.bytes
    }
}

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The request is at fault.
    Refused(Refusal),
    /// The budget is spent; the sender should come again.
    NoRoom,
}

/// A body that was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopped {
    pub(super) cause: Cause,
    /// Bytes that had arrived, the excess included.
    pub(super) size: u64,
    /// Digest of what was kept of them.
    pub(super) digest: Option<Digest>,
}

/// Reads the stream to its end, or stops at the first byte too many.
///
/// `declared` is the Content-Length, if there is one.
pub(super) async fn collect<S>(
    stream: &mut S,
    declared: Option<u64>,
    body_bytes: usize,
    body_time: Duration,
    budget: &Budget,
) -> Result<Body, Stopped>
where
    S: Stream<Item = Result<Bytes, PayloadError>> + Unpin,
{
    let deadline = Instant::now() + body_time;
    let ahead = ahead(declared, body_bytes)?;
    let mut share = budget.share();
    let mut body = BytesMut::with_capacity(ahead);
    loop {
        let Ok(next) = timeout_at(deadline, stream.next()).await else {
            return Err(stopped(Cause::Refused(Refusal::BodyTimeout), &body, 0));
        };
        let chunk = match next {
            None => break,
            Some(Ok(chunk)) => chunk,
            Some(Err(_)) => {
                return Err(stopped(Cause::Refused(Refusal::BodyBroken), &body, 0));
            }
        };
        if body.len() + chunk.len() > body_bytes {
            let cause = Cause::Refused(Refusal::BodyTooLarge);
            return Err(stopped(cause, &body, chunk.len()));
        }
        if !share.grow_to(body.len() + chunk.len()) {
            return Err(stopped(Cause::NoRoom, &body, chunk.len()));
        }
        body.extend_from_slice(&chunk);
    }
    // An `Upgrade: websocket` field makes actix read to the end of the connection, whatever the
    // declared length was.
    if declared.is_some_and(|declared| declared != body.len() as u64) {
        return Err(stopped(Cause::Refused(Refusal::BodyBroken), &body, 0));
    }
    Ok(Body {
        bytes: body.freeze(),
        held: share.held,
    })
}

/// How much to allocate before the first byte; refuses a declared length above the limit.
fn ahead(declared: Option<u64>, body_bytes: usize) -> Result<usize, Stopped> {
    let declared = usize::try_from(declared.unwrap_or(0)).unwrap_or(usize::MAX);
    if declared > body_bytes {
        return Err(stopped(Cause::Refused(Refusal::BodyTooLarge), &[], 0));
    }
    Ok(declared.min(AHEAD_BYTES))
}

fn stopped(cause: Cause, kept: &[u8], beyond: usize) -> Stopped {
    Stopped {
        cause,
        size: (kept.len() + beyond) as u64,
        digest: (!kept.is_empty()).then(|| Digest::of(kept)),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn chunks(
        parts: &[&'static [u8]],
    ) -> impl Stream<Item = Result<Bytes, PayloadError>> + Unpin + use<> {
        let parts: Vec<_> = parts.iter().map(|p| Ok(Bytes::from_static(p))).collect();
        stream::iter(parts)
    }

    fn refusal(stopped: Stopped) -> Refusal {
        match stopped.cause {
            Cause::Refused(refusal) => refusal,
            Cause::NoRoom => panic!("no room"),
        }
    }

    #[tokio::test]
    async fn f33_exactly_the_limit_is_read_and_one_byte_more_is_not() {
        let budget = Budget::new(1 << 20);
        let mut whole = chunks(&[b"abcd", b"efgh"]);
        let body = collect(&mut whole, None, 8, SECOND, &budget).await.unwrap();
        assert_eq!(body.release(), Bytes::from_static(b"abcdefgh"));

        let mut more = chunks(&[b"abcd", b"efgh", b"i"]);
        let stopped = collect(&mut more, None, 8, SECOND, &budget)
            .await
            .unwrap_err();
        assert_eq!(refusal(stopped), Refusal::BodyTooLarge);
        assert_eq!(stopped.size, 9);
        assert_eq!(stopped.digest, Some(Digest::of(b"abcdefgh")));
    }

    #[tokio::test]
    async fn f33_a_declared_length_above_the_limit_is_refused_unread() {
        let mut untouched = stream::iter([Err(PayloadError::Overflow)]);
        let budget = Budget::new(1 << 20);
        for declared in [9, u64::MAX] {
            let stopped = collect(&mut untouched, Some(declared), 8, SECOND, &budget)
                .await
                .unwrap_err();
            assert_eq!(refusal(stopped), Refusal::BodyTooLarge);
            assert_eq!((stopped.size, stopped.digest), (0, None));
        }
        assert!(untouched.next().await.is_some());
    }

    #[tokio::test]
    async fn the_deadline_is_for_the_whole_body_not_for_a_chunk() {
        let drip = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            Some((Ok(Bytes::from_static(b"x")), ()))
        });
        let mut drip = Box::pin(drip);
        let time = Duration::from_millis(200);
        let stopped = collect(&mut drip, None, 1_000, time, &Budget::new(4_096))
            .await
            .unwrap_err();
        assert_eq!(refusal(stopped), Refusal::BodyTimeout);
        assert!((1..=6).contains(&stopped.size), "{}", stopped.size);
    }

    #[tokio::test]
    async fn a_body_cut_short_or_longer_than_declared_is_broken() {
        let budget = Budget::new(4_096);
        let mut cut = stream::iter([
            Ok(Bytes::from_static(b"ab")),
            Err(PayloadError::Incomplete(None)),
        ]);
        let stopped = collect(&mut cut, Some(4), 8, SECOND, &budget)
            .await
            .unwrap_err();
        assert_eq!(refusal(stopped), Refusal::BodyBroken);

        let mut longer = chunks(&[b"abcd", b"e"]);
        let stopped = collect(&mut longer, Some(4), 8, SECOND, &budget)
            .await
            .unwrap_err();
        assert_eq!(refusal(stopped), Refusal::BodyBroken);
    }

    #[tokio::test]
    async fn bodies_share_one_budget_and_give_it_back() {
        let budget = Budget::new(2 * UNIT_BYTES);
        let first = collect(&mut chunks(&[&[1; 2_000]]), None, 4_096, SECOND, &budget)
            .await
            .unwrap();
        let refused = collect(&mut chunks(&[b"x"]), None, 4_096, SECOND, &budget)
            .await
            .unwrap_err();
        assert_eq!(refused.cause, Cause::NoRoom);
        assert_eq!(first.release().len(), 2_000);
        assert_eq!(budget.units.available_permits(), 2);

        // A body that does not fit gives back what it had while it was read.
        let mut large = chunks(&[&[1; 1_500], &[1; 1_500]]);
        let refused = collect(&mut large, None, 4_096, SECOND, &budget)
            .await
            .unwrap_err();
        assert_eq!(refused.cause, Cause::NoRoom);
        assert_eq!(budget.units.available_permits(), 2);
    }

    #[tokio::test]
    async fn an_empty_body_is_a_body() {
        let mut none = stream::iter(Vec::<Result<Bytes, PayloadError>>::new());
        let budget = Budget::new(0);
        let body = collect(&mut none, Some(0), 8, SECOND, &budget).await;
        assert!(body.unwrap().release().is_empty());
    }
}
