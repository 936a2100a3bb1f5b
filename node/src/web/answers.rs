//! What all requests to a served model have in common: the size of their bodies, and answers that say why there is none.

use super::fresh;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

/// Longest body of a request: some ten thousand rows, or a camera's picture.
pub(super) const BODY: usize = 16 << 20;

/// An answer that says why there is none.
pub(super) fn refused(status: StatusCode, why: &str) -> Response {
    fresh((status, Json(json!({"error": why}))))
}

/// A request's body, or the answer to one that cannot be read.
pub(super) fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Box<Response>> {
    body.map_err(|error| {
        let why = match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let most = BODY >> 20;
                format!("the body has more than {most} MiB: send it in several requests")
            }
            _ => format!("the body cannot be read: {error}"),
        };
        Box::new(refused(error.status(), &why))
    })
}
