//! TLS to PostgreSQL by rustls.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::StoreError;
use super::settings::{Settings, Trust};

/// The connector for the settings' `sslmode`.
pub(super) fn connector(settings: &Settings) -> Result<MakeRustlsConnect, StoreError> {
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&crypto))
        .with_safe_default_protocol_versions()
        .map_err(|e| StoreError::Tls(e.to_string()))?;
    let config = match settings.trust {
        Trust::Full => builder
            .with_root_certificates(roots(settings)?)
            .with_no_client_auth(),
        Trust::Chain => {
            let chain = WebPkiServerVerifier::builder_with_provider(
                Arc::new(roots(settings)?),
                Arc::clone(&crypto),
            )
            .build()
            .map_err(|e| StoreError::Tls(e.to_string()))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Lenient {
                    chain: Some(chain),
                    crypto,
                }))
                .with_no_client_auth()
        }
        Trust::Any => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Lenient {
                chain: None,
                crypto,
            }))
            .with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(settings: &Settings) -> Result<RootCertStore, StoreError> {
    let mut store = RootCertStore::empty();
    if let Some(path) = &settings.root_cert {
        let unusable = |error: &dyn std::fmt::Display| {
            let (key, path) = (settings.key, path.display());
            StoreError::Tls(format!("{key}: sslrootcert {path}: {error}"))
        };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|e| unusable(&e))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|e| unusable(&e))?;
            store.add(certificate).map_err(|e| unusable(&e))?;
        }
    } else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if store.is_empty() {
        return Err(StoreError::Tls(format!(
            "{}: no trusted root certificate found; set sslrootcert",
            settings.key
        )));
    }
    Ok(store)
}

/// What `require` and `verify-ca` ask for: the handshake's signature is always checked, the chain
/// if there is one to check, the host name never.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    crypto: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last, so the chain has held when only the name is wrong.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.crypto.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.crypto.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto
            .signature_verification_algorithms
            .supported_schemes()
    }
}
