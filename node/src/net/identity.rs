//! Who a peer is: a key pair, and the certificate that carries its public half into TLS.
//!
//! A [`PeerId`] is the BLAKE3 hash of the public key's SubjectPublicKeyInfo, so it needs no authority and
//! cannot be claimed without the key. It must know nothing of runs, tickets or connections.

use crate::net::hello::peer_of_key;
use annulus_core::PeerId;
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, UnparsedPublicKey},
};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls::{
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::ParsedCertificate,
};
use std::{
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Name in every certificate and in every TLS greeting; nobody checks it, but TLS wants one.
pub(crate) const TLS_NAME: &str = "annulus";

/// Longest key file that is read; ours have about 140 bytes.
const MAX_KEY_FILE: u64 = 4096;

/// A peer's key pair, its certificate and its id.
///
/// The keys are ECDSA P-256: the one kind that browsers accept for a self-signed WebTransport certificate too.
pub struct Identity {
    key: KeyPair,
    certificate: CertificateDer<'static>,
    peer: PeerId,
}

impl Identity {
    /// A new identity from the operating system's random numbers.
    pub fn generate() -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("P-256 keys can be generated");
        Self::from_key(key)
    }

    /// The identity saved at `path`.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let unreadable = |error| IdentityError::Read(path.to_owned(), error);
        if fs::metadata(path).map_err(unreadable)?.len() > MAX_KEY_FILE {
            return Err(IdentityError::NoKey(path.to_owned()));
        }
        let der = fs::read(path).map_err(unreadable)?;
        let key =
            KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ECDSA_P256_SHA256)
                .map_err(|_| IdentityError::NoKey(path.to_owned()))?;
        Ok(Self::from_key(key))
    }

    /// Writes the private key (PKCS #8, DER) to a new file that only its owner may read, and makes its folder if
    /// there is none.
    ///
    /// Never overwrites: a lost key is a lost identity.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        self.write(path)
            .map_err(|error| IdentityError::Write(path.to_owned(), error))
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        if path.try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // Under another name first: a power cut must not leave half a key, which nobody could go on with.
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&partial)?;
        file.write_all(self.key.serialized_der())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    }

    /// The identity saved at `path`, or a new one saved there if there is no such file.
    pub fn load_or_create(path: &Path) -> Result<Self, IdentityError> {
        match Self::load(path) {
            Err(IdentityError::Read(_, error)) if error.kind() == io::ErrorKind::NotFound => {
                let identity = Self::generate();
                identity.save(path)?;
                Ok(identity)
            }
            loaded => loaded,
        }
    }

    /// The id by which others know this identity.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub(crate) fn private_key(&self) -> PrivatePkcs8KeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.serialized_der().to_vec())
    }

    /// What signs in this identity's name outside of TLS.
    pub(crate) fn signer(&self) -> Signer {
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, self.key.serialized_der())
            .expect("an identity's key is a P-256 key");
        Signer {
            key,
            public_key: self.key.subject_public_key_info(),
        }
    }

    fn from_key(key: KeyPair) -> Self {
        let certificate: CertificateDer<'static> = CertificateParams::new(vec![TLS_NAME.to_owned()])
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate can be made from constants and a P-256 key")
            .into();
        let peer = peer_of(&certificate).expect("a certificate just made can be read");
        Self {
            key,
            certificate,
            peer,
        }
    }
}

impl fmt::Debug for Identity {
    /// Without the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.peer)
    }
}

/// The id that belongs to a certificate's public key; `None` if it cannot be read.
pub(crate) fn peer_of(certificate: &CertificateDer<'_>) -> Option<PeerId> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    Some(peer_of_key(&parsed.subject_public_key_info()))
}

/// Signs as ECDSA P-256 with SHA-256 does, r and s as 32 bytes each: the form that browsers' WebCrypto uses.
pub(crate) struct Signer {
    key: EcdsaKeyPair,
    public_key: Vec<u8>,
}

impl Signer {
    /// SubjectPublicKeyInfo in DER.
    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// The signature of a message; `None` if the operating system gives no random bytes.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let signature = self.key.sign(&SystemRandom::new(), message).ok()?;
        Some(signature.as_ref().to_vec())
    }
}

/// What stands before the point in the SubjectPublicKeyInfo of every P-256 key that is not compressed.
const P256_INFO: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Whether a public key, as [`Signer::public_key`] writes it, made this signature. A key has one form only, so that it
/// has one [`PeerId`] only.
pub(crate) fn verifies(public_key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    const UNCOMPRESSED: u8 = 4;
    public_key.strip_prefix(&P256_INFO).is_some_and(|point| {
        point.len() == 65
            && point[0] == UNCOMPRESSED
            && UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(message, signature)
                .is_ok()
    })
}

/// Why an identity could not be loaded or saved. Nothing was changed on disk, except that a failed write may
/// leave a short file with `.partial` behind its name.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error("cannot read the identity {path}: {1}", path = .0.display())]
    Read(PathBuf, io::Error),
    /// The file does not hold one of our keys.
    #[error(
        "{path} holds no annulus identity (a P-256 key as PKCS #8 DER): name another file, or move it away \
         and a new identity is made",
        path = .0.display()
    )]
    NoKey(PathBuf),
    /// The file cannot be written.
    #[error("cannot save the identity to {path}: {1}", path = .0.display())]
    Write(PathBuf, io::Error),
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
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_signature_holds_for_its_message_and_key_alone() {
        let (me, other) = (Identity::generate().signer(), Identity::generate().signer());
        let signature = me.sign(b"message").unwrap();
        assert_eq!(signature.len(), 64);
        assert!(verifies(me.public_key(), b"message", &signature));
        assert!(!verifies(me.public_key(), b"massage", &signature));
        assert!(!verifies(other.public_key(), b"message", &signature));
        assert!(!verifies(me.public_key(), b"message", &signature[..63]));
        assert!(!verifies(&me.public_key()[1..], b"message", &signature));
        assert!(!verifies(&[], b"message", &signature));
        let mut compressed = me.public_key().to_vec();
        for sign in [2, 3] {
            compressed[26] = sign;
            assert!(!verifies(&compressed[..26 + 33], b"message", &signature));
        }
    }

    #[test]
    fn the_id_of_a_certificate_is_that_of_its_key() {
        let identity = Identity::generate();
        assert_eq!(peer_of_key(identity.signer().public_key()), identity.peer());
    }

    #[test]
    fn other_files_are_told() {
        let dir = scratch("other");
        for (name, content) in [
            ("empty", vec![]),
            ("text", b"hello".to_vec()),
            ("long", vec![0x30; 10_000]),
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
