//! The page's files: found in a folder, sent compressed where the build made that and the browser takes it, and kept by
//! browsers until they change.
//!
//! tower-http's `ServeDir` would not do: it sends a packed file even if the original has changed since, reads a file of many
//! megabytes again for each tab, and serves every file of the folder.
//!
//! It must know nothing of runs, and of HTTP only requests and answers.

use axum::{
    body::Bytes,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{
            ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
            IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{Html, IntoResponse, Response},
};
use std::{
    collections::HashMap,
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::UNIX_EPOCH,
};

/// Longest file that is served.
const MAX_FILE: u64 = 64 << 20;

/// Files that are kept in memory, so that many tabs that load one file at once share it.
const KEPT: usize = 24;

/// The rights of the page: its own files, WebAssembly, workers, and connections to other peers by WebTransport. Browsers that do
/// not know the word for certificates by their hashes ignore it.
const POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; \
                      connect-src 'self' https: 'unsafe-webtransport-hashes'; img-src 'self' data:; object-src 'none'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The rights of the page that stands in while the real one is not built: one file with its script and style.
const POLICY_STAND_IN: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                               connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STAND_IN: &str = include_str!("stand_in.html");

/// The files of a page.
#[derive(Debug)]
pub struct Files {
    /// Where they are; none if the page was not built.
    dir: Option<PathBuf>,
    kept: Mutex<HashMap<PathBuf, (String, Bytes)>>,
}

impl Files {
    /// The files in a folder.
    pub fn new(dir: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            dir,
            kept: Mutex::default(),
        })
    }

    /// Answers a request for a path. Reads files, so it may take a moment.
    pub fn answer(&self, path: &str, headers: &HeaderMap) -> Response {
        let name = match path.strip_prefix('/') {
            Some("") => "index.html",
            Some(name) => name,
            None => return StatusCode::BAD_REQUEST.into_response(),
        };
        let Some(kind) = content_type(name) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        let packed = accepts_gzip(accepted.unwrap_or(""));
        let found = self.dir.as_deref().and_then(|dir| find(dir, name, packed));
        let Some((file, metadata, packed)) = found else {
            return if name == "index.html" {
                stand_in()
            } else {
                StatusCode::NOT_FOUND.into_response()
            };
        };
        let tag = tag(&metadata, packed);
        let mut answer = if headers.get(IF_NONE_MATCH).is_some_and(|known| names(known, &tag)) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            match self.read(file, &tag) {
                Ok(bytes) => bytes.into_response(),
                Err(_) => return StatusCode::NOT_FOUND.into_response(),
            }
        };
        let to = answer.headers_mut();
        to.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if packed {
            to.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        to.insert(VARY, HeaderValue::from_static("accept-encoding"));
        to.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        to.insert(
            ETAG,
            HeaderValue::from_str(&tag).expect("a tag is made of hexadecimal digits"),
        );
        protect(to, POLICY);
        answer
    }

    fn read(&self, file: PathBuf, tag: &str) -> io::Result<Bytes> {
        let lock = || self.kept.lock().expect("nobody panics while holding the files");
        if let Some((known, bytes)) = lock().get(&file)
            && known == tag
        {
            return Ok(bytes.clone());
        }
        let bytes = Bytes::from(fs::read(&file)?);
        let mut kept = lock();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(file, (tag.to_owned(), bytes.clone()));
        Ok(bytes)
    }
}

/// The usual folder of the page: `browser` beside the folder of the profile that this program was built in, or beside this program,
/// or where packages install it.
pub fn usual_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    let folders = [
        beside.parent().map(|target| target.join("browser")),
        Some(beside.join("browser")),
        beside.parent().map(|prefix| prefix.join("share/annulus/browser")),
    ];
    folders
        .into_iter()
        .flatten()
        .find(|folder| folder.join("index.html").is_file())
}

/// Says to browsers what this page may do and who may look into it.
pub fn protect(headers: &mut HeaderMap, policy: &'static str) {
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    for (name, value) in [
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-embedder-policy", "require-corp"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn stand_in() -> Response {
    let mut answer = Html(STAND_IN).into_response();
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    protect(headers, POLICY_STAND_IN);
    answer
}

/// Of a name that the page may have: one step, no hidden file, and of a kind that belongs to a page.
fn content_type(name: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.starts_with('.') || name.len() > 100 || !name.chars().all(plain) {
        return None;
    }
    Some(match name.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "wasm" => "application/wasm",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}

/// The file to send for a name, and whether it is packed. It is if the build made a packed one, that is not out of date, and the
/// browser takes it.
fn find(dir: &Path, name: &str, may_be_packed: bool) -> Option<(PathBuf, Metadata, bool)> {
    let look = |path: PathBuf| {
        let metadata = fs::metadata(&path).ok()?;
        (metadata.is_file() && metadata.len() <= MAX_FILE).then_some((path, metadata))
    };
    let (path, metadata) = look(dir.join(name))?;
    if may_be_packed
        && let Some((path, packed)) = look(dir.join(format!("{name}.gz")))
        && packed.modified().ok() >= metadata.modified().ok()
    {
        return Some((path, packed, true));
    }
    Some((path, metadata, false))
}

/// Whether an `Accept-Encoding` header names gzip, and not with a quality of zero.
fn accepts_gzip(header: &str) -> bool {
    header.split(',').any(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts
            .filter_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")))
            .any(|quality| quality.trim().parse::<f32>().is_ok_and(|quality| quality <= 0.0));
        named && !refused
    })
}

/// Changes whenever the file does.
fn tag(metadata: &Metadata, packed: bool) -> String {
    let changed = metadata
        .modified()
        .ok()
        .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let changed = changed.map_or(0, |at| at.as_nanos());
    let kind = if packed { "gz" } else { "" };
    format!("\"{changed:x}-{:x}{kind}\"", metadata.len())
}

/// Whether an `If-None-Match` header names a tag.
fn names(header: &HeaderValue, tag: &str) -> bool {
    let known = header.to_str().unwrap_or("").split(',').map(str::trim);
    known
        .map(|known| known.strip_prefix("W/").unwrap_or(known))
        .any(|known| known == tag || known == "*")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    fn page() -> (Scratch, Arc<Files>) {
        let scratch = Scratch::new();
        let dir = scratch.0.join("browser");
        fs::create_dir(&dir).unwrap();
        for (name, content) in [
            ("../secret.txt", "secret"),
            ("index.html", "<p>page"),
            ("annulus_bg.wasm", "wasm"),
            ("annulus_bg.wasm.gz", "gz"),
            (".hidden.txt", "hidden"),
            ("notes.md", "notes"),
        ] {
            fs::write(dir.join(name), content).unwrap();
        }
        let files = Files::new(Some(dir));
        (scratch, files)
    }

    fn get(files: &Files, path: &str, headers: &[(&'static str, &str)]) -> (StatusCode, HeaderMap, Bytes) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        let (parts, body) = files.answer(path, &map).into_parts();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(axum::body::to_bytes(body, usize::MAX)).unwrap();
        (parts.status, parts.headers, bytes)
    }

    #[test]
    fn files_come_with_their_type_and_packed_if_the_browser_takes_that() {
        let (_scratch, files) = page();
        let (status, headers, body) = get(&files, "/", &[]);
        assert_eq!((status, &body[..]), (StatusCode::OK, &b"<p>page"[..]));
        assert_eq!(headers[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(headers["cross-origin-opener-policy"], "same-origin");
        assert_eq!(headers["cross-origin-embedder-policy"], "require-corp");
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert!(
            headers[CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap()
                .contains("'wasm-unsafe-eval'")
        );
        for (accepted, coding, content) in [
            ("gzip, deflate, br, zstd", Some("gzip"), "gz"),
            ("br, gzip;q=0.5", Some("gzip"), "gz"),
            ("gzip;q=0", None, "wasm"),
            ("identity", None, "wasm"),
            ("", None, "wasm"),
        ] {
            let (status, headers, body) = get(&files, "/annulus_bg.wasm", &[("accept-encoding", accepted)]);
            assert_eq!(
                (status, &body[..]),
                (StatusCode::OK, content.as_bytes()),
                "{accepted}"
            );
            assert_eq!(headers[CONTENT_TYPE], "application/wasm");
            assert_eq!(
                headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap()),
                coding
            );
        }
    }

    #[test]
    fn a_browser_that_has_the_file_is_told_so_until_it_changes() {
        let (scratch, files) = page();
        let (_, headers, _) = get(&files, "/annulus_bg.wasm", &[("accept-encoding", "gzip")]);
        let tag = headers[ETAG].to_str().unwrap();
        let again = |coding| {
            get(
                &files,
                "/annulus_bg.wasm",
                &[("accept-encoding", coding), ("if-none-match", tag)],
            )
        };
        let (status, _, body) = again("gzip");
        assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0));
        assert_eq!(again("").0, StatusCode::OK, "another coding is another file");
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(scratch.0.join("browser/annulus_bg.wasm"), "newer").unwrap();
        let (status, headers, body) = again("gzip");
        assert_eq!(
            (status, &body[..]),
            (StatusCode::OK, &b"newer"[..]),
            "the sibling is out of date"
        );
        assert_eq!(headers.get(CONTENT_ENCODING), None);
    }

    #[test]
    fn nothing_else_is_served() {
        let (_scratch, files) = page();
        for path in [
            "/../secret.txt",
            "/..%2fsecret.txt",
            "/%2e%2e/secret.txt",
            "//etc/passwd",
            "/.hidden.txt",
            "/notes.md",
            "/annulus_bg.wasm.gz",
            "/none.js",
            "/a/index.html",
            "/\\..\\secret.txt",
            "/index.html/",
            "/index.html\0",
        ] {
            assert_eq!(get(&files, path, &[]).0, StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(get(&files, "*", &[]).0, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn without_files_a_page_says_how_to_build_them() {
        for files in [Files::new(None), Files::new(Some("/nowhere".into()))] {
            let (status, headers, body) = get(&files, "/", &[]);
            assert_eq!(status, StatusCode::OK);
            assert!(headers[CONTENT_TYPE].to_str().unwrap().starts_with("text/html"));
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(text.contains("takes part") && text.contains("/status"));
            assert_eq!(get(&files, "/annulus.js", &[]).0, StatusCode::NOT_FOUND);
        }
    }
}
