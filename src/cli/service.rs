//! The way from a verb to the running service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::config::Config;

use super::failure::{Failure, Step as _};

/// Where the public listener can be reached from this machine.
pub(super) fn address(config: &Config) -> Result<SocketAddr, Failure> {
    let mut address = config.listen.public;
    if address.port() == 0 {
        return Err(
            Failure::usage("listen.public has port 0: only the service knows its port")
                .hint("give the address with --url"),
        );
    }
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(address)
}

/// A client that follows no redirect and asks no proxy for what is on this machine.
pub(super) fn client(url: &reqwest::Url, time_max: Duration) -> Result<reqwest::Client, Failure> {
    let mut builder = reqwest::Client::builder()
        .timeout(time_max)
        .redirect(reqwest::redirect::Policy::none());
    let host = url.host_str().unwrap_or_default();
    // A proxy of the environment does not lead back to this machine.
    if host == "localhost" || host.starts_with("127.") || host == "[::1]" {
        builder = builder.no_proxy();
    }
    builder.build().step("cannot set up the HTTP client")
}
