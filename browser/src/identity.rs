//! Who a tab is: a key pair that the browser keeps and never shows.
//!
//! As natively, a [`PeerId`] is the hash of the public key. A tab's key lives as long as its worker.

use crate::js::{bytes, object, words};
use annulus::net::hello::peer_of_key;
use annulus_core::PeerId;
use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{CryptoKey, CryptoKeyPair, SubtleCrypto, WorkerGlobalScope};

/// A tab's key pair.
#[derive(Clone)]
pub struct Identity {
    subtle: SubtleCrypto,
    private: CryptoKey,
    /// The public key: SubjectPublicKeyInfo in DER.
    pub key: Vec<u8>,
    /// Its hash.
    pub peer: PeerId,
}

impl Identity {
    /// A fresh key pair: ECDSA over P-256, as native peers have.
    ///
    /// # Errors
    ///
    /// If the browser has no such thing, as outside of a secure context.
    pub async fn generate() -> Result<Self, String> {
        Self::make().await.map_err(|error| {
            format!(
                "the browser makes no key: {}. Open the page by https or on localhost",
                words(&error)
            )
        })
    }

    async fn make() -> Result<Self, JsValue> {
        let scope: WorkerGlobalScope = js_sys::global().dyn_into()?;
        let subtle = scope.crypto()?.subtle();
        let algorithm = object(&[("name", "ECDSA".into()), ("namedCurve", "P-256".into())]);
        let uses = Array::of2(&"sign".into(), &"verify".into());
        let made = subtle.generate_key_with_object(algorithm.unchecked_ref(), false, &uses)?;
        let pair: CryptoKeyPair = JsFuture::from(made).await?.unchecked_into();
        let exported = JsFuture::from(subtle.export_key("spki", &pair.get_public_key())?).await?;
        let key = Uint8Array::new(&exported).to_vec();
        Ok(Self {
            private: pair.get_private_key(),
            peer: peer_of_key(&key),
            subtle,
            key,
        })
    }

    /// Signs with ECDSA and SHA-256: 64 bytes, r and s.
    pub async fn sign(&self, message: &[u8]) -> Result<Vec<u8>, JsValue> {
        let signature =
            self.subtle
                .sign_with_object_and_js_u8_array(&algorithm(), &self.private, &bytes(message))?;
        let signature = JsFuture::from(signature).await?;
        Ok(Uint8Array::new(&signature).to_vec())
    }

    /// Whether `signature` is one of `message` by the owner of a public key.
    pub async fn verify(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<bool, JsValue> {
        let kind = object(&[("name", "ECDSA".into()), ("namedCurve", "P-256".into())]);
        let uses = Array::of1(&"verify".into());
        let key =
            self.subtle
                .import_key_with_object("spki", &bytes(key), kind.unchecked_ref(), true, &uses)?;
        let key: CryptoKey = JsFuture::from(key).await?.unchecked_into();
        let good = self.subtle.verify_with_object_and_js_u8_array_and_js_u8_array(
            &algorithm(),
            &key,
            &bytes(signature),
            &bytes(message),
        )?;
        Ok(JsFuture::from(good).await?.is_truthy())
    }
}

fn algorithm() -> js_sys::Object {
    object(&[("name", "ECDSA".into()), ("hash", "SHA-256".into())]).unchecked_into()
}
