//! A peer's identity: a key pair, and the certificate that carries its public key into TLS.
//!
//! A [`PeerId`] is an Ed25519 public key, so it needs no authority and nobody can claim it without the private key.
//! This module knows nothing of runs, tickets or connections.

use crate::files::{FileError, read_limited, write_private};
use annulus_core::PeerId;
use annulus_core::signature::Key;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::{
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::ParsedCertificate,
};
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

/// The name in every certificate and TLS greeting. TLS wants one; nobody checks it.
pub(crate) const TLS_NAME: &str = "annulus";

/// The bytes before the seed in every key file: PKCS #8 of an Ed25519 key (RFC 8410), without the public half.
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The bytes before the key in the SubjectPublicKeyInfo of every Ed25519 key.
const PUBLIC_INFO: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A peer's key pair, its certificate and its id.
pub struct Identity {
    key: Key,
    seed: [u8; 32],
    certificate: CertificateDer<'static>,
}

impl Identity {
    /// A new identity from the operating system's random numbers.
    pub fn generate() -> Self {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).expect("the operating system gives random bytes");
        Self::from_seed(seed)
    }

    /// The identity saved at `path`.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let file = read_limited(path, PKCS8.len() + 32 + 1).map_err(IdentityError::Read)?;
        let seed = file.strip_prefix(&PKCS8);
        let seed = seed.and_then(|seed| <[u8; 32]>::try_from(seed).ok());
        seed.map(Self::from_seed)
            .ok_or_else(|| IdentityError::NoKey(path.to_owned()))
    }

    /// Writes the private key (PKCS #8, DER) to a new file that only its owner may read. Creates the folder if needed.
    ///
    /// It never overwrites a file: a lost key is a lost identity.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        let failed = |error| IdentityError::Write(FileError::new(path, error));
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        if fs::symlink_metadata(path).is_ok() {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        write_private(path, &self.private()).map_err(IdentityError::Write)
    }

    /// The identity saved at `path`, or a new one saved there if there is no such file.
    pub fn load_or_create(path: &Path) -> Result<Self, IdentityError> {
        match Self::load(path) {
            Err(IdentityError::Read(FileError::Missing(_))) => {
                let identity = Self::generate();
                identity.save(path)?;
                Ok(identity)
            }
            loaded => loaded,
        }
    }

    /// The id by which others know this identity.
    pub fn peer(&self) -> PeerId {
        self.key.peer()
    }

    /// The key that signs in its name.
    pub fn key(&self) -> Key {
        self.key.clone()
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub(crate) fn private_key(&self) -> PrivatePkcs8KeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.private())
    }

    /// PKCS #8 in DER.
    fn private(&self) -> Vec<u8> {
        [&PKCS8[..], &self.seed].concat()
    }

    fn from_seed(seed: [u8; 32]) -> Self {
        let private = PrivatePkcs8KeyDer::from([&PKCS8[..], &seed].concat());
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&private, &PKCS_ED25519)
            .expect("any 32 bytes are the seed of a key");
        let certificate = CertificateParams::new(vec![TLS_NAME.to_owned()])
            .and_then(|params| params.self_signed(&pair))
            .expect("a certificate can be made from constants and an Ed25519 key");
        Self {
            key: Key::from_seed(&seed),
            seed,
            certificate: certificate.into(),
        }
    }
}

impl fmt::Debug for Identity {
    /// Without the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.peer())
    }
}

/// The id in a certificate, which is its key. `None` if it cannot be parsed or has a key of another kind.
pub(crate) fn peer_of(certificate: &CertificateDer<'_>) -> Option<PeerId> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let info = parsed.subject_public_key_info();
    let key = info.strip_prefix(&PUBLIC_INFO)?;
    Some(PeerId(key.try_into().ok()?))
}

/// Why an identity could not be loaded or saved. Nothing on disk has changed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error("cannot read this peer's identity: {0}")]
    Read(FileError),
    /// The file does not hold one of our keys.
    #[error(
        "{path} holds no annulus identity (an Ed25519 key as PKCS #8 DER): name another file, or move it away \
         and a new identity is made",
        path = .0.display()
    )]
    NoKey(PathBuf),
    /// The file cannot be written.
    #[error("cannot save this peer's identity: {0}")]
    Write(FileError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("annulus-identity-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_saved_identity_comes_back_and_only_its_owner_reads_it() {
        let dir = scratch("roundtrip");
        let path = dir.join("new/identity");
        let first = Identity::load_or_create(&path).unwrap();
        let again = Identity::load_or_create(&path).unwrap();
        assert_eq!(first.peer(), again.peer());
        assert_ne!(first.peer(), Identity::generate().peer());
        assert_eq!(peer_of(&again.certificate()), Some(first.peer()));
        assert!(
            matches!(first.save(&path), Err(IdentityError::Write(..))),
            "overwrote a key"
        );
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o600);
            // A file that somebody put in the key's way does not receive the key.
            let (path, planted) = (dir.join("other"), dir.join("other.partial"));
            fs::write(&planted, "").unwrap();
            fs::set_permissions(&planted, fs::Permissions::from_mode(0o666)).unwrap();
            let theirs = fs::File::open(&planted).unwrap();
            Identity::load_or_create(&path).unwrap();
            assert_eq!((mode(&path), theirs.metadata().unwrap().len()), (0o600, 0));
            std::os::unix::fs::symlink(&path, dir.join("link")).unwrap();
            let error = Identity::load_or_create(&dir.join("link"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("is a link"), "{error}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_id_of_a_certificate_is_its_key() {
        let identity = Identity::generate();
        assert_eq!(peer_of(&identity.certificate()), Some(identity.peer()));
        assert_eq!(identity.key().peer(), identity.peer());
        let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let params = CertificateParams::new(vec![TLS_NAME.to_owned()]).unwrap();
        assert_eq!(peer_of(params.self_signed(&other).unwrap().der()), None);
    }

    #[test]
    fn other_files_are_told() {
        let dir = scratch("other");
        for (name, content) in [
            ("empty", vec![]),
            ("text", b"hello".to_vec()),
            ("long", vec![0x30; 10_000]),
            ("longer", [&PKCS8[..], &[7; 33]].concat()),
        ] {
            fs::write(dir.join(name), content).unwrap();
            assert!(
                matches!(Identity::load(&dir.join(name)), Err(IdentityError::NoKey(_))),
                "{name}"
            );
        }
        assert!(matches!(
            Identity::load(&dir.join("none")),
            Err(IdentityError::Read(..))
        ));
        assert_eq!(peer_of(&CertificateDer::from(vec![1, 2, 3])), None);
        fs::remove_dir_all(dir).unwrap();
    }
}
