//! TLS for HTTP over TCP: a certificate and its key from files, as they are at the start.

use crate::config::TlsFiles;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::Arc;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("http.tls.{key} is {}, which cannot be used: {source}; PEM works", path.display())]
    File { key: &'static str, path: PathBuf, source: pem::Error },
    #[error("http.tls.cert is {}, which has no certificate in it; PEM works, the server's own first", path.display())]
    NoCertificate { path: PathBuf },
    #[error("http.tls.key {} does not go with http.tls.cert {}: {source}", key.display(), cert.display())]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

/// What the server shows and speaks: TLS 1.2 and 1.3, nobody is asked for a certificate.
///
/// # Errors
/// Which file cannot be used, and why.
pub(crate) fn load(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let TlsFiles { cert, key } = files;
    let certificates = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|source| TlsError::File { key: "cert", path: cert.clone(), source })?;
    if Vec::is_empty(&certificates) {
        return Err(TlsError::NoCertificate { path: cert.clone() });
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File {
        key: "key",
        path: key.clone(),
        source,
    })?;
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, private))
        .map_err(|source| TlsError::Pair { cert: cert.clone(), key: key.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::CertifiedKey;
    use std::path::Path;

    fn files(folder: &Path, cert: &str, key: &str) -> TlsFiles {
        let files = TlsFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
        std::fs::write(&files.cert, cert).expect("scratch file");
        std::fs::write(&files.key, key).expect("scratch file");
        files
    }

    #[test]
    fn what_is_wrong_with_which_file_is_told() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let (CertifiedKey { cert, signing_key }, other) = (made(), made());
        let (cert, key) = (cert.pem(), signing_key.serialize_pem());
        load(&files(folder.path(), &cert, &key)).expect("a pair");
        for (cert, key, words) in [
            ("", key.as_str(), ["http.tls.cert", "no certificate"]),
            (&cert, "", ["http.tls.key", "cannot be used"]),
            (&cert, &other.signing_key.serialize_pem(), ["key.pem does not go with", "cert.pem"]),
        ] {
            let error = load(&files(folder.path(), cert, key)).expect_err("no pair").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let missing = TlsFiles { cert: folder.path().join("none"), key: folder.path().join("none") };
        let error = load(&missing).expect_err("no file").to_string();
        assert!(error.contains("http.tls.cert") && error.contains("none"), "{error}");
    }
}
