//! HTTP written by hand over a socket, for what no client library would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection that is written by hand.
pub(crate) struct Wire(pub(crate) TcpStream);

impl Wire {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    pub(crate) async fn head(&mut self, path: &str, fields: &str) {
        self.send(format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
        ))
        .await;
    }

    pub(crate) async fn done_writing(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    /// Everything until the server closes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut text = Vec::new();
        let all = timeout(Duration::from_secs(20), self.0.read_to_end(&mut text)).await;
        all.expect("the connection stayed open").unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// One answer, on a connection that stays open.
    pub(crate) async fn answer(&mut self) -> String {
        let mut text = Vec::new();
        timeout(Duration::from_secs(20), async {
            while !complete(&text) {
                assert_ne!(self.0.read_buf(&mut text).await.unwrap(), 0, "closed");
            }
        })
        .await
        .expect("no answer");
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn complete(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        })
        .unwrap_or(0);
    body.len() >= length
}

pub(crate) fn status(answer: &str) -> u16 {
    answer
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| answer.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .unwrap_or_else(|| panic!("no status line: {answer:?}"))
}

/// How many answers there are in what was received.
pub(crate) fn answers(text: &str) -> usize {
    text.matches("HTTP/1.").count()
}

pub(crate) fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut sent = Vec::new();
    for chunk in body.chunks(size) {
        sent.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b"0\r\n\r\n");
    sent
}
