//! TLS to PostgreSQL: each `sslmode` checks exactly what libpq's documentation says it checks.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use oncehook::store::{Settings, Store, migrate};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::support::OwnCluster;
use crate::support::shared::shared;

/// A loopback address of its own, so that port 5432 is free there.
const ADDRESS: &str = "127.84.76.83";

/// A certificate authority, and a server certificate for `db.test` signed by it.
struct Pki {
    folder: tempfile::TempDir,
}

impl Pki {
    fn new(server_uid: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["elsewhere.test".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["db.test".to_owned()])
            .unwrap()
            .signed_by(&key, &authority)
            .unwrap();
        let pki = Self { folder };
        fs::write(pki.path("ca.pem"), authority.pem()).unwrap();
        fs::write(pki.path("other.pem"), other.cert.pem()).unwrap();
        fs::write(pki.path("server.pem"), server.pem()).unwrap();
        fs::write(pki.path("server.key"), key.serialize_pem()).unwrap();
        fs::set_permissions(pki.path("server.key"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(
            pki.path("hba.conf"),
            "local all all trust\nhostssl all all 127.0.0.0/8 trust\n",
        )
        .unwrap();
        for file in ["server.key", "server.pem", "hba.conf"] {
            chown(pki.path(file), Some(server_uid), None).unwrap();
        }
        pki
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn text(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }
}

async fn connects(host: &str, mode: &str, root: Option<&Path>) -> Result<(), String> {
    let root = root
        .map(|root| format!("&sslrootcert={}", root.display()))
        .unwrap_or_default();
    let url =
        format!("postgresql://postgres@{host}/postgres?hostaddr={ADDRESS}&sslmode={mode}{root}");
    let settings = Settings::parse(&url).map_err(|e| e.to_string())?;
    migrate::pending(&settings)
        .await
        .map(drop)
        .map_err(|e| e.to_string())?;
    // The pools go through the same door.
    let store = Store::new(settings, 1).map_err(|e| e.to_string())?;
    match store.check_writable().await {
        // The maintenance database has no schema of ours: being told so is being connected.
        Err(oncehook::store::StoreError::Statement(error)) if error.code().is_some() => Ok(()),
        other => other.map_err(|e| e.to_string()),
    }
}

#[tokio::test]
async fn each_sslmode_checks_what_it_says() {
    let server_uid = fs::metadata(shared().await.seed().await).unwrap().uid();
    let pki = Pki::new(server_uid);
    let _cluster = OwnCluster::with_settings(&[
        ("listen_addresses", ADDRESS),
        ("ssl", "on"),
        ("ssl_cert_file", &pki.text("server.pem")),
        ("ssl_key_file", &pki.text("server.key")),
        ("hba_file", &pki.text("hba.conf")),
    ])
    .await;
    let (ca, other) = (pki.path("ca.pem"), pki.path("other.pem"));

    // The server takes TLS only.
    let plain = connects("db.test", "disable", None).await.unwrap_err();
    assert!(plain.contains("pg_hba"), "{plain}");
    for mode in ["prefer", "require"] {
        connects("db.test", mode, None).await.unwrap();
    }
    // The chain counts for verify-ca, the name does not.
    connects("wrong.test", "verify-ca", Some(&ca))
        .await
        .unwrap();
    connects("wrong.test", "require", Some(&ca)).await.unwrap();
    // Both count for verify-full.
    connects("db.test", "verify-full", Some(&ca)).await.unwrap();
    for (host, mode, root) in [
        ("wrong.test", "verify-full", &ca),
        ("db.test", "verify-full", &other),
        ("db.test", "verify-ca", &other),
        ("db.test", "require", &other),
    ] {
        let refused = connects(host, mode, Some(root)).await.unwrap_err();
        assert!(refused.contains("certificate"), "{host} {mode}: {refused}");
    }
    let missing = connects("db.test", "verify-full", Some(&pki.path("nowhere.pem")))
        .await
        .unwrap_err();
    assert!(missing.contains("sslrootcert"), "{missing}");
}
