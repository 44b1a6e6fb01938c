//! The sample configuration: a source per provider, secrets drawn once and kept.

use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::domain::SecretText;

/// Where everything listens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) public: SocketAddr,
    pub(super) api: SocketAddr,
    pub(super) echo: SocketAddr,
    pub(super) charges: SocketAddr,
}

/// A secret per source, and those `echo` and the demonstration provider are called with.
#[derive(Debug, Clone)]
pub(super) struct Secrets {
    pub(super) stripe: SecretText,
    pub(super) partner: SecretText,
    pub(super) adyen: SecretText,
    pub(super) github: SecretText,
    pub(super) shop: SecretText,
    pub(super) echo: SecretText,
    pub(super) charge: SecretText,
}

impl Secrets {
    /// Those of the file an earlier `dev` wrote, each replaced by a new one where it is absent.
    pub(super) fn kept_or_new(file: &Path) -> Self {
        let old = std::fs::read_to_string(file).unwrap_or_default();
        let old: toml::Table = old.parse().unwrap_or_default();
        let kept = |list: &str, name: &str| {
            let entry = old
                .get(list)?
                .as_array()?
                .iter()
                .find(|entry| entry.get("name").and_then(toml::Value::as_str) == Some(name))?;
            let value = entry.get("secrets")?.get(0)?.get("value")?;
            Some(SecretText::new(value.as_str()?))
        };
        let new = |text: String| move || SecretText::new(text);
        Self {
            stripe: kept("source", "stripe-main").unwrap_or_else(new(format!("whsec_{}", hex(16)))),
            partner: kept("source", "partner").unwrap_or_else(new(whsec())),
            adyen: kept("source", "adyen-main").unwrap_or_else(new(hex(32).to_uppercase())),
            github: kept("source", "github-main").unwrap_or_else(new(hex(20))),
            shop: kept("source", "shop").unwrap_or_else(new(hex(20))),
            echo: kept("handler", "echo").unwrap_or_else(new(whsec())),
            charge: kept("operation", "charge").unwrap_or_else(new(whsec())),
        }
    }
}

fn random(bytes: usize) -> Vec<u8> {
    rand::random_iter().take(bytes).collect()
}

fn hex(bytes: usize) -> String {
    hex::encode(random(bytes))
}

fn whsec() -> String {
    format!("whsec_{}", STANDARD.encode(random(24)))
}

/// The whole file.
pub(super) fn configuration(url: &str, addresses: &Addresses, secrets: &Secrets) -> String {
    let Addresses {
        public,
        api,
        echo,
        charges,
    } = addresses;
    format!(
        r#"# Written by `oncehook dev` at every start. The secrets are kept, other changes are not:
# copy it to ./oncehook.toml to make it yours.

[database]
url = {url}

[listen]
public = "{public}"
api = "{api}"

[log]
format = "text"

[[source]]
name = "stripe-main"
provider = "stripe"
secrets = [{{ label = "dev", value = "{stripe}" }}]

[[source]]
name = "partner"
provider = "standard-webhooks"
secrets = [{{ label = "dev", value = "{partner}" }}]

[[source]]
name = "adyen-main"
provider = "adyen"
secrets = [{{ label = "dev", value = "{adyen}" }}]

[[source]]
name = "github-main"
provider = "github"
secrets = [{{ label = "dev", value = "{github}" }}]

[[source]]
name = "shop"
provider = "hmac"
secrets = [{{ label = "dev", value = "{shop}" }}]
[source.hmac]
header = "X-Shop-Signature"
signed = "{{timestamp}}.{{body}}"
timestamp_header = "X-Shop-Time"
hash = "sha256"
encoding = "hex"
prefix = "v1="
event_id = "json:/id"
event_type = "json:/type"
entity = "json:/data/order_id"

# Books into app.ledger, in the transaction that records the outcome.
[[handler]]
name = "ledger"
kind = "sql"
call = "app.book_payment"
events = ["stripe-main:*", "partner:*", "adyen-main:*", "shop:*"]

# Calls the receiver that `dev` runs.
[[handler]]
name = "echo"
kind = "http"
url = "http://{echo}/hooks"
secrets = [{{ label = "dev", value = "{echo_secret}" }}]
events = ["*:*"]
on_unknown = "retry"

# POST /v1/operations/charge charges at the demonstration provider that `dev` runs. It honours no keys, and
# keeps its charges in memory: a call whose answer is lost is asked for, not repeated.
[[operation]]
name = "charge"
kind = "http"
url = "http://{charges}/charges"
secrets = [{{ label = "dev", value = "{charge_secret}" }}]
timeout = "2s"
lease = "7s"
on_unknown = "probe"
probe = {{ url = "http://{charges}/charges/by-reference/{{effect_key}}", after = ["2s", "8s", "30s", "2m", "10m"] }}
"#,
        url = toml::Value::String(url.to_owned()),
        stripe = secrets.stripe.expose(),
        partner = secrets.partner.expose(),
        adyen = secrets.adyen.expose(),
        github = secrets.github.expose(),
        shop = secrets.shop.expose(),
        echo_secret = secrets.echo.expose(),
        charge_secret = secrets.charge.expose(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Environment};

    #[test]
    fn the_sample_is_a_usable_configuration_and_keeps_its_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dev.toml");
        let addresses = Addresses {
            public: "127.0.0.1:8080".parse().unwrap(),
            api: "127.0.0.1:8081".parse().unwrap(),
            echo: "127.0.0.1:9".parse().unwrap(),
            charges: "127.0.0.1:10".parse().unwrap(),
        };
        let secrets = Secrets::kept_or_new(&file);
        let text = configuration("postgresql:///x?host=/a'b\"c", &addresses, &secrets);
        let config = Config::parse(&text, &file, &Environment::default()).unwrap();
        assert_eq!(config.sources.len(), 5);
        assert_eq!(config.handlers.len(), 2);
        let operations: Vec<_> = config.operations.iter().map(|o| o.name.as_str()).collect();
        assert_eq!(operations, ["charge"]);
        // What GitHub's signature leaves open is said, and nothing else.
        let said: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("X-GitHub-Delivery"), "{said:?}");
        assert_eq!(config.database.url.expose(), "postgresql:///x?host=/a'b\"c");

        std::fs::write(&file, &text).unwrap();
        let kept = Secrets::kept_or_new(&file);
        assert_eq!(
            configuration("postgresql:///x?host=/a'b\"c", &addresses, &kept),
            text
        );
        std::fs::write(&file, "broken [").unwrap();
        assert_ne!(Secrets::kept_or_new(&file).stripe, secrets.stripe);
    }
}
