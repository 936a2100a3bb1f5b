//! A trained model over HTTP: rows come as JSON or CSV, pictures as files, and go back with predictions.
//!
//! **Bounds** are those of the page, and [`BODY`] for what a request brings. Rows are computed by one thread for each core.

use super::bearer::{self, Token};
use super::hurried::Hurried;
use super::pause::Ends;
use super::{HURRY, LIFE, fresh, limits, speak};
use crate::net::slots::Slots;
use crate::task::Predict;
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Longest body of a request: some ten thousand rows, or a camera's picture.
const BODY: usize = 16 << 20;

/// The form for people, and what it shares with the page of a run.
const FORM: &str = include_str!("form.html");
const FIELDS: &str = include_str!("../../../browser/page/fields.js");

/// What every request needs.
struct Served {
    model: Box<dyn Predict>,
    /// One permit for each core.
    cores: Semaphore,
}

/// Answers until the process ends: only requests with the token, if there is one.
pub async fn serve(listener: TcpListener, model: Box<dyn Predict>, token: Option<Token>) -> io::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = Semaphore::new(cores);
    let router = Router::new()
        .route("/v1/schema", get(schema))
        .route("/v1/predict", post(predict))
        .route_layer(middleware::from_fn_with_state(token, bearer::check))
        // These say nothing of the model.
        .route("/", get(|| async { fresh(Html(FORM)) }))
        .route(
            "/fields.js",
            get(|| async { fresh(([(CONTENT_TYPE, "text/javascript")], FIELDS)) }),
        )
        .route("/health", get(|| async { fresh(Json(json!({"status": "ok"}))) }))
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(Arc::new(Served { model, cores }));
    let slots = Slots::new(limits(), Arc::default());
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of file descriptors, most likely: some will be free in a while.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (Some(slot), Ok(ours)) = (slots.take(from.ip()), stream.local_addr()) else {
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            let _slot = slot;
            let _ = stream.set_nodelay(true);
            let ends = Ends { theirs: from, ours };
            let _ = timeout(LIFE, speak(Hurried::new(stream, HURRY), router, ends)).await;
        });
    }
}

async fn schema(State(served): State<Arc<Served>>) -> Response {
    fresh(Json(served.model.inputs()))
}

async fn predict(State(served): State<Arc<Served>>, headers: HeaderMap, body: Bytes) -> Response {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is = |start: &str| kind.is_some_and(|kind| kind.starts_with(start));
    let (csv, image) = (is("text/csv"), is("image/"));
    let Ok(_permit) = served.cores.acquire().await else {
        return fresh(StatusCode::SERVICE_UNAVAILABLE);
    };
    let of = served.clone();
    // Other requests do not wait for these rows.
    let answer = tokio::task::spawn_blocking(move || match csv {
        _ if image => of
            .model
            .answer_file(&body)
            .map(|answer| Json(answer).into_response()),
        true => of.model.predict("the request", &body).map(|text| {
            let mut answer = text.into_response();
            let kind = HeaderValue::from_static("text/csv; charset=utf-8");
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            answer
        }),
        false => {
            let rows: Value =
                serde_json::from_slice(&body).map_err(|error| format!("the body is no JSON: {error}"))?;
            of.model.answer(&rows).map(|answer| Json(answer).into_response())
        }
    });
    match answer.await {
        Ok(Ok(answer)) => fresh(answer),
        Ok(Err(why)) => fresh((StatusCode::BAD_REQUEST, Json(json!({"error": why.to_string()})))),
        Err(_) => fresh(StatusCode::INTERNAL_SERVER_ERROR),
    }
}
