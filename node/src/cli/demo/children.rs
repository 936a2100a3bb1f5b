//! The demo's peers: child processes of this very program, whose JSON lines come back as messages.
//!
//! They never outlive the demo: they are killed when this is dropped, also by a panic, and the signals that would end
//! the demo arrive as messages.

use super::super::error::Error;
use crate::events::LogLine;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// What comes in.
#[derive(Debug)]
pub enum Message {
    /// A child's line.
    Line(usize, Box<LogLine>),
    /// A child's output has ended.
    Gone(usize),
    /// The user or the system asks the demo to end.
    Interrupted,
}

enum Raw {
    Message(Message),
    Stderr(usize, String),
}

/// The processes.
pub struct Children {
    exe: PathBuf,
    children: Vec<Running>,
    send: SyncSender<Raw>,
    receive: Receiver<Raw>,
}

struct Running {
    process: Child,
    said: VecDeque<String>,
}

/// Messages that may wait; then children wait.
const QUEUE: usize = 4096;
/// Lines of a child's standard error that are kept, for the case that it fails.
const SAID_LINES: usize = 6;

impl Children {
    /// None yet. They will run `exe`.
    pub fn new(exe: PathBuf) -> Result<Self, Error> {
        let (send, receive) = sync_channel(QUEUE);
        watch_signals(send.clone())?;
        Ok(Self {
            exe,
            children: Vec::new(),
            send,
            receive,
        })
    }

    /// Starts one; they are numbered from 0.
    pub fn start(&mut self, args: &[String]) -> Result<(), Error> {
        let mut process = Command::new(&self.exe)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Error::failed(format!("cannot start {}: {e}", self.exe.display())))?;
        let index = self.children.len();
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        self.children.push(Running {
            process,
            said: VecDeque::new(),
        });
        let send = self.send.clone();
        thread::spawn(move || {
            for line in stdout
                .into_iter()
                .flat_map(|out| BufReader::new(out).lines())
                .map_while(Result::ok)
            {
                let raw = match LogLine::from_json(&line) {
                    Ok(line) => Raw::Message(Message::Line(index, Box::new(line))),
                    Err(_) => Raw::Stderr(index, line),
                };
                if send.send(raw).is_err() {
                    return;
                }
            }
            let _ = send.send(Raw::Message(Message::Gone(index)));
        });
        let send = self.send.clone();
        thread::spawn(move || {
            for line in stderr
                .into_iter()
                .flat_map(|err| BufReader::new(err).lines())
                .map_while(Result::ok)
            {
                if send.send(Raw::Stderr(index, line)).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// The next message, if one comes in time.
    pub fn next(&mut self, wait: Duration) -> Option<Message> {
        match self.receive.recv_timeout(wait) {
            Ok(Raw::Message(message)) => Some(message),
            Ok(Raw::Stderr(index, line)) => {
                self.hear(index, line);
                None
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    fn hear(&mut self, index: usize, line: String) {
        let said = &mut self.children[index].said;
        said.push_back(line);
        if said.len() > SAID_LINES {
            said.pop_front();
        }
    }

    /// Ends one at once: SIGKILL where there are signals.
    pub fn kill(&mut self, index: usize) {
        // An error means that it has ended already.
        let _ = self.children[index].process.kill();
        let _ = self.children[index].process.wait();
    }

    /// The last that one has said on standard error. Waits a little for it.
    pub fn said(&mut self, index: usize) -> String {
        while let Ok(raw) = self.receive.recv_timeout(Duration::from_millis(200)) {
            if let Raw::Stderr(index, line) = raw {
                self.hear(index, line);
            }
        }
        self.children[index]
            .said
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.process.kill();
        }
        for child in &mut self.children {
            let _ = child.process.wait();
        }
    }
}

/// Ctrl-C, and on Unix the polite requests to end, become messages.
fn watch_signals(send: SyncSender<Raw>) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::failed(format!("cannot watch for Ctrl-C: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                if asked_to_end().await.is_err() || send.send(Raw::Message(Message::Interrupted)).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

#[cfg(unix)]
async fn asked_to_end() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = term.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn asked_to_end() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Children {
        let mut children = Children::new("/bin/sh".into()).unwrap();
        children.start(&["-c".into(), script.into()]).unwrap();
        children
    }

    fn next(children: &mut Children) -> Message {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(10), "no message");
            if let Some(message) = children.next(Duration::from_millis(100)) {
                return message;
            }
        }
    }

    #[test]
    fn lines_come_in_and_noise_is_kept_apart() {
        let mut children = shell(
            r#"echo oh >&2; echo noise; echo '{"time":"t","event":"warning","message":"m"}'; echo no >&2"#,
        );
        assert!(matches!(next(&mut children), Message::Line(0, _)));
        assert!(matches!(next(&mut children), Message::Gone(0)));
        let said = children.said(0);
        assert!(
            said.contains("oh") && said.contains("noise") && said.contains("no"),
            "{said}"
        );
    }

    #[test]
    fn nobody_survives() {
        let mut children = shell("echo $$ >&2; exec sleep 1000");
        let process = loop {
            children.next(Duration::from_millis(100));
            if let Some(line) = children.children[0].said.front() {
                break line.clone();
            }
        };
        let alive = || {
            Command::new("/bin/sh")
                .args(["-c", &format!("kill -0 {process}")])
                .stderr(Stdio::null())
                .status()
        };
        assert!(alive().unwrap().success());
        drop(children);
        assert!(!alive().unwrap().success());
    }
}
