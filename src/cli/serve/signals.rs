//! SIGTERM, SIGINT and SIGHUP.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::super::failure::{Failure, Step as _};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Wish {
    Stop,
    Reload,
}

/// Signals caught from now on in place of ending the process.
#[derive(Debug)]
pub(in crate::cli) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(in crate::cli) fn listen() -> Result<Self, Failure> {
        let catch = |kind| signal(kind).step("cannot listen to signals");
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }

    /// The next wish.
    pub(in crate::cli) async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::Stop,
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.hangup.recv() => Wish::Reload,
        }
    }

    /// Waits for a wish to stop; others are passed over.
    pub(in crate::cli) async fn stop(&mut self) {
        while self.next().await != Wish::Stop {}
    }
}
