//! A running `annulus serve`, and requests to it.
#![allow(dead_code, reason = "each test file uses its own part")]

use crate::common::annulus;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

/// Ends with the test.
pub struct Server {
    child: Child,
    address: String,
    /// What it said after its address.
    told: BufReader<ChildStdout>,
    /// The token that requests carry, if any.
    pub token: Option<String>,
}

impl Server {
    /// One that answers by a model file.
    pub fn start(model: &str) -> Self {
        Self::start_at(model, &["--listen", "127.0.0.1:0"])
    }

    /// One with these options.
    pub fn start_at(model: &str, options: &[&str]) -> Self {
        let mut command = annulus();
        command
            .args(["serve", model])
            .args(options)
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let told = BufReader::new(child.stdout.take().expect("piped"));
        let mut server = Self {
            child,
            address: String::new(),
            told,
            token: None,
        };
        let line = server.line();
        let address = line.strip_prefix("answering at http://").expect("an address");
        server.address = address.replace("0.0.0.0", "127.0.0.1");
        server
    }

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    /// One request on a connection of its own: status and body.
    pub fn ask(&self, what: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let length = body.len();
        let token = self.token.as_ref();
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        let head = format!(
            "{what} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{token}\r\n"
        );
        let answer = self.exchange(&[head.as_bytes(), body].concat());
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        (status.unwrap_or(0), body.unwrap_or_default())
    }

    /// Bytes on a connection of their own, and all that comes back.
    pub fn exchange(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("somebody listens");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a limit");
        // It may close before it has read a body that is too long.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Its address, as `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
