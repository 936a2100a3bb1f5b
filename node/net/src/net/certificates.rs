//! Certificates for browsers: made by the node itself, short-lived, and pinned by their hashes.
//!
//! A page may connect to a server without a certificate authority if it names the SHA-256 of the server's certificate.
//! The certificate must use ECDSA P-256 and be valid for at most 14 days (WebTransport's `serverCertificateHashes`). So
//! there are always two: the current one and its successor. Both are announced, so what a peer learns stays true for at
//! least as long as the current one is valid.
//!
//! This module knows nothing of connections.

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd};
use rustls::{
    crypto::aws_lc_rs::default_provider,
    pki_types::PrivatePkcs8KeyDer,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const DAY: Duration = Duration::from_secs(86_400);

/// How long a certificate is valid. Chromium takes 14 days and refuses 15.
const VALID: Duration = DAY.saturating_mul(13);

/// How long a certificate is valid before and after its use, since browsers' clocks may be off by this much.
const MARGIN: Duration = DAY;

/// How long it is used.
const USED: Duration = VALID.saturating_sub(MARGIN.saturating_mul(2));

/// The SHA-256 of a certificate in DER.
pub type Fingerprint = [u8; 32];

/// The current certificate and its successor.
#[derive(Debug)]
pub struct Certificates {
    names: Vec<SanType>,
    pair: Mutex<[Made; 2]>,
}

#[derive(Clone, Debug)]
struct Made {
    key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    /// Start of its use, after 1970.
    from: Duration,
}

impl Certificates {
    /// Certificates for a machine with these addresses.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self::at(addresses, now())
    }

    fn at(addresses: impl IntoIterator<Item = IpAddr>, now: Duration) -> Self {
        let localhost = "localhost".try_into().expect("a name in ASCII");
        let mut names = vec![SanType::DnsName(localhost)];
        names.extend(addresses.into_iter().map(SanType::IpAddress));
        let pair = [Made::new(&names, now), Made::new(&names, now + USED)];
        Self {
            names,
            pair: Mutex::new(pair),
        }
    }

    /// The current certificate, with its key.
    pub fn present(&self) -> Arc<CertifiedKey> {
        self.renewed(now())[0].key.clone()
    }

    /// The fingerprints that a tab may meet: of the current certificate and of its successor.
    pub fn fingerprints(&self) -> [Fingerprint; 2] {
        self.renewed(now()).map(|made| made.fingerprint)
    }

    /// The pair at this time, renewed if that is due.
    fn renewed(&self, now: Duration) -> [Made; 2] {
        let mut pair = self
            .pair
            .lock()
            .expect("nobody panics while holding the certificates");
        if now >= pair[1].from + USED {
            // The machine has slept for longer than both are used.
            *pair = [Made::new(&self.names, now), Made::new(&self.names, now + USED)];
        } else if now >= pair[1].from {
            let after = Made::new(&self.names, pair[1].from + USED);
            *pair = [pair[1].clone(), after];
        }
        pair.clone()
    }
}

/// For TLS over TCP.
impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.present())
    }
}

impl Made {
    fn new(names: &[SanType], from: Duration) -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("P-256 keys can be generated");
        let mut params = CertificateParams::default();
        let begin = date_time_ymd(1970, 1, 1) + from.saturating_sub(MARGIN);
        params.not_before = begin;
        params.not_after = begin + VALID;
        params.subject_alt_names = names.to_vec();
        let certificate = params
            .self_signed(&pair)
            .expect("a certificate can be made from addresses and a P-256 key");
        let fingerprint = digest(&SHA256, certificate.der());
        let secret = PrivatePkcs8KeyDer::from(pair.serialized_der().to_vec());
        let key = CertifiedKey::from_der(
            vec![certificate.der().clone()],
            secret.into(),
            &default_provider(),
        )
        .expect("a key just made fits its certificate");
        Self {
            key: Arc::new(key),
            fingerprint: fingerprint.as_ref().try_into().expect("SHA-256 has 32 bytes"),
            from,
        }
    }
}

fn now() -> Duration {
    // With a clock before 1970 browsers refuse the certificates. Nothing else breaks.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_certificate_is_announced_before_it_is_used_and_the_last_one_stays_valid() {
        let begin = Duration::from_secs(1_780_000_000);
        let certificates = Certificates::at([IpAddr::from([127, 0, 0, 1])], begin);
        let prints = |at| certificates.renewed(at).map(|made| made.fingerprint);
        let first = prints(begin);
        assert_ne!(first[0], first[1]);
        assert_eq!(prints(begin + USED - Duration::from_secs(1)), first);
        let second = prints(begin + USED);
        assert_eq!(second[0], first[1]);
        assert_ne!(second[1], first[0]);
        assert_eq!(prints(begin), second, "a clock that goes back changes nothing");

        let [present, next] = certificates.renewed(begin + USED);
        assert_eq!(next.from - present.from, USED);
        assert!(USED + 2 * MARGIN <= VALID && VALID <= 14 * DAY);

        let late = prints(begin + 10 * USED);
        assert!(!late.contains(&second[0]) && !late.contains(&second[1]));
    }

    #[test]
    fn a_fingerprint_is_that_of_the_certificate() {
        let certificates = Certificates::new([]);
        let present = certificates.present();
        let print = digest(&SHA256, &present.cert[0]);
        assert_eq!(print.as_ref(), certificates.fingerprints()[0]);
    }
}
