//! A running `annulus serve`, and requests to it.

use crate::common::annulus;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

/// Ends with the test.
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// One that answers by a model file.
    pub fn start(model: &str) -> Self {
        let mut command = annulus();
        command
            .args(["serve", model, "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut line = String::new();
        let told = child.stdout.take().expect("piped");
        BufReader::new(told).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("answering at http://");
        let address = address.expect("an address").to_owned();
        Self { child, address }
    }

    /// One request on a connection of its own: status and body.
    pub fn ask(&self, what: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("somebody listens");
        let length = body.len();
        let head = format!(
            "{what} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        // It may close before it has read a body that is too long.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        (status.unwrap_or(0), body.unwrap_or_default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
