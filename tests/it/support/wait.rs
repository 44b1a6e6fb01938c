//! Waiting for evidence instead of sleeping.

use std::time::{Duration, Instant};

/// How long evidence may take. Only a failing test waits this long.
pub(crate) const TIME_MAX: Duration = Duration::from_mins(1);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks until the condition holds; fails with `what` when it does not in time.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    until_some(what, async || holds().await.then_some(())).await;
}

/// Looks until there is a value and returns it.
pub(crate) async fn until_some<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIME_MAX;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited {TIME_MAX:?} in vain: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
