//! HTTP by hand, for requests that no proper client would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const TIME_MAX: Duration = Duration::from_mins(1);

/// One TCP connection to a listener.
#[derive(Debug)]
pub(crate) struct RawHttp {
    stream: TcpStream,
}

/// What came back on a [`RawHttp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawResponse {
    /// Status code.
    pub(crate) status: u16,
    /// Status line and headers.
    pub(crate) head: String,
    /// The body's bytes, as text.
    pub(crate) body: String,
}

impl RawResponse {
    /// The first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    /// Whether it says that it repeats an earlier answer.
    pub(crate) fn replayed(&self) -> bool {
        self.header("Idempotency-Replayed") == Some("true")
    }
}

impl RawHttp {
    /// Connects.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    /// Writes bytes as they are; `false` when the other side has hung up.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Closes our direction only.
    pub(crate) async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Everything until the other side closes.
    pub(crate) async fn read_all(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset ends it too; what came before it counts.
        drop(
            timeout(TIME_MAX, self.stream.read_to_end(&mut bytes))
                .await
                .expect("the connection stays open"),
        );
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// One response with a `Content-Length`; `None` when the connection ends before.
    pub(crate) async fn read_response(&mut self) -> Option<RawResponse> {
        timeout(TIME_MAX, self.try_read_response())
            .await
            .expect("no answer")
    }

    async fn try_read_response(&mut self) -> Option<RawResponse> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let mut body = vec![0; content_length(&head)];
        self.stream.read_exact(&mut body).await.ok()?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Some(RawResponse { status, head, body })
    }
}

/// The value of `Content-Length` in a head, 0 without one.
pub(crate) fn content_length(head: &str) -> usize {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse().unwrap())
}
