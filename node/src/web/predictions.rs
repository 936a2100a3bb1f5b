//! A trained model over HTTP: rows come as JSON or CSV, pictures as files, and go back with predictions. Language models
//! write: see [`completions`](super::completions).
//!
//! Other machines need a token. Without one, the pages of other sites that a browser on this machine shows get no answers, and no
//! body of theirs is read: see [`hosts`](super::hosts).
//!
//! **Bounds** are those of the page, and [`BODY`] for what a request brings. Rows are computed by one thread for each core.

use super::answers::{BODY, refused, whole};
use super::bearer::{self, Token};
use super::completions::{self, Writer};
use super::hosts::Hosts;
use super::hurried::Hurried;
use super::page::protect;
use super::pause::Ends;
use super::{HURRY, LIFE, fresh, limits, speak};
use crate::net::slots::Slots;
use crate::task::Predict;
use annulus_table::Unique;
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request, State, rejection::BytesRejection},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE},
    },
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{error::Category, json};
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The form for people, and what it shares with the page of a run.
const FORM: &str = include_str!("form.html");
const FIELDS: &str = include_str!("../../../browser/page/fields.js");

/// What the model did not know in a CSV, as a list in JSON.
const WARNINGS: &str = "annulus-warnings";

/// The rights of the form: its own script, and to be shown in no other page.
const POLICY: &str = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The requests that are answered.
#[derive(Clone, Debug)]
pub enum Askers {
    /// Those that carry the token.
    Token(Token),
    /// Those for these hosts.
    Hosts(Hosts),
}

/// The model that answers.
pub enum Model {
    /// Predicts from rows or pictures.
    Rows(Box<dyn Predict>),
    /// Continues texts.
    Texts(Writer),
}

/// What every request for a prediction needs.
struct Served {
    model: Box<dyn Predict>,
    /// One permit for each core.
    cores: Semaphore,
}

/// Answers until the process ends.
pub async fn serve(listener: TcpListener, model: Model, askers: Askers) -> io::Result<()> {
    let (of_model, paths) = match model {
        Model::Rows(model) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let cores = Semaphore::new(cores);
            let router = Router::new()
                .route("/v1/schema", get(schema))
                .route("/v1/predict", post(predict))
                .with_state(Arc::new(Served { model, cores }));
            (router, "POST /v1/predict, or GET /v1/schema, /health or /")
        }
        Model::Texts(writer) => {
            let router = Router::new()
                .route("/v1/schema", get(completions::schema))
                .route("/v1/models", get(completions::models))
                .route("/v1/completions", post(completions::complete))
                .with_state(Arc::new(writer));
            (
                router,
                "POST /v1/completions, or GET /v1/models, /v1/schema, /health or /",
            )
        }
    };
    let another_method = move || async move {
        let why = format!("another method is needed: {paths}");
        refused(StatusCode::METHOD_NOT_ALLOWED, &why)
    };
    let nothing_here =
        move || async move { refused(StatusCode::NOT_FOUND, &format!("there is nothing here: {paths}")) };
    let of_model = of_model.method_not_allowed_fallback(another_method);
    // These say nothing of the model.
    let of_all = Router::new()
        .route("/", get(form))
        .route(
            "/fields.js",
            get(|| async { fresh(([(CONTENT_TYPE, "text/javascript")], FIELDS)) }),
        )
        .route("/health", get(|| async { fresh(Json(json!({"status": "ok"}))) }))
        .method_not_allowed_fallback(another_method)
        .fallback(nothing_here);
    let router = match askers {
        Askers::Token(token) => of_model
            .route_layer(middleware::from_fn_with_state(token, bearer::check))
            .merge(of_all),
        Askers::Hosts(hosts) => of_model
            .merge(of_all)
            .layer(middleware::from_fn_with_state(Arc::new(hosts), addressed)),
    };
    let router = router.layer(DefaultBodyLimit::max(BODY));
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

/// Answers only this machine's programs and the form. A body is not read before.
async fn addressed(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let why = format!(
                "{denied}: ask http://localhost:PORT or http://127.0.0.1:PORT, or start annulus serve with --token FILE and send \
                 that token"
            );
            let mut answer = refused(denied.status(), &why);
            // The connection is not kept for more of them.
            let headers = answer.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
            answer
        }
    }
}

async fn form() -> Response {
    let mut answer = fresh(Html(FORM));
    protect(answer.headers_mut(), POLICY);
    answer
}

async fn schema(State(served): State<Arc<Served>>) -> Response {
    fresh(Json(served.model.inputs()))
}

/// Most rows of a request. Each takes some hundred bytes while it is answered, and a short row is a few bytes of the body.
const MOST_ROWS: usize = 100_000;

/// Rows that a body may have, told without reading it.
fn rows_at_most(body: &[u8], csv: bool) -> usize {
    let count = |of: u8| body.iter().filter(|byte| **byte == of).count();
    if csv {
        count(b'\n').max(count(b'\r'))
    } else {
        count(b'{')
    }
}

async fn predict(
    State(served): State<Arc<Served>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match whole(body) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().to_ascii_lowercase();
    let (csv, image) = (kind.starts_with("text/csv"), kind.starts_with("image/"));
    if csv && !body.trim_ascii().contains(&b'\n') && !body.trim_ascii().contains(&b'\r') {
        let why = "the CSV is one line, and the first line names the columns. With curl write --data-binary @FILE, as -d takes \
                   the line ends out";
        return refused(StatusCode::BAD_REQUEST, why);
    }
    if !image && rows_at_most(&body, csv) > MOST_ROWS {
        let why = format!("the request has more than {MOST_ROWS} rows: send them in several");
        return refused(StatusCode::PAYLOAD_TOO_LARGE, &why);
    }
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
        true => of.model.answer_rows(&body).map(|predicted| {
            let mut answer = predicted.text.into_response();
            let kind = HeaderValue::from_static("text/csv; charset=utf-8");
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            // Headers are ASCII; JSON writes the rest with escapes.
            let notes = ascii(&json!(predicted.notes).to_string());
            if let (false, Ok(notes)) = (predicted.notes.is_empty(), HeaderValue::from_str(&notes)) {
                answer.headers_mut().insert(WARNINGS, notes);
            }
            answer
        }),
        false => {
            let Unique(rows) = serde_json::from_slice(&body).map_err(|error| match error.classify() {
                Category::Data => error.to_string(),
                _ => format!(
                    "the body is no JSON: {error}. If it is something else, say so in the header Content-Type: text/csv, \
                     image/png or image/jpeg"
                ),
            })?;
            of.model.answer(&rows).map(|answer| Json(answer).into_response())
        }
    });
    match answer.await {
        Ok(Ok(answer)) => fresh(answer),
        Ok(Err(why)) => refused(StatusCode::BAD_REQUEST, &why.to_string()),
        Err(_) => fresh(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// JSON with an escape for each character that is not ASCII.
fn ascii(json: &str) -> String {
    let mut text = String::new();
    for letter in json.chars() {
        match letter.is_ascii() {
            true => text.push(letter),
            false => {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::rows_at_most;

    #[test]
    fn rows_are_counted_before_they_are_read() {
        assert_eq!(rows_at_most(b"a,b\r\n1,2\r\n3,4\r\n", true), 3);
        assert_eq!(rows_at_most(b"a,b\r1,2\r", true), 2);
        assert_eq!(rows_at_most(br#"[{"a":1},{"a":2}]"#, false), 2);
    }
}
