//! Peers of a demo or a bench: child processes of this very program, whose JSON lines come back as messages.
//!
//! They never outlive it: they are killed when this is dropped, also by a panic, and the signals that would end
//! it arrive as messages.

use super::error::Error;
use super::process::Signals;
use crate::events::{Event, LogLine};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// What comes in.
#[derive(Debug)]
pub enum Message {
    /// A child's event.
    Event(usize, Box<Event>),
    /// A child's output has ended.
    Ended(usize),
    /// The user or the system asks for an end.
    Interrupted,
}

/// The processes.
pub struct Children {
    exe: PathBuf,
    /// Theirs; it goes when they go.
    folder: PathBuf,
    children: Vec<Child>,
    send: SyncSender<Message>,
    receive: Receiver<Message>,
}

/// Messages that may wait; then children wait.
const QUEUE: usize = 4096;
/// Lines of a child's standard error that are told if it fails.
const LAST_WORDS: usize = 6;

impl Children {
    /// None yet.
    pub fn new() -> Result<Self, Error> {
        let exe = std::env::current_exe().map_err(|e| {
            Error::failed(format!(
                "cannot find this program's own file to start peers from: {e}"
            ))
        })?;
        // Of a name that nobody can have put a link at.
        let folder = tempfile::Builder::new().prefix("annulus-peers-").tempdir();
        let folder = folder.map_err(|error| no_folder(&std::env::temp_dir(), &error))?;
        Self::of(exe, folder.keep())
    }

    /// They will run `exe`, and `folder` is made for them.
    pub fn of(exe: PathBuf, folder: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&folder).map_err(|error| no_folder(&folder, &error))?;
        let (send, receive) = sync_channel(QUEUE);
        watch_signals(send.clone()).map_err(|e| Error::failed(format!("cannot watch for Ctrl-C: {e}")))?;
        Ok(Self {
            exe,
            folder,
            children: Vec::new(),
            send,
            receive,
        })
    }

    /// Starts a peer that computes there; they are numbered from 0.
    pub fn start(&mut self, mut args: Vec<String>, device: &str) -> Result<(), Error> {
        let out = self.folder.join(self.children.len().to_string());
        let out = out.to_string_lossy();
        let common = [
            ["--device", device],
            ["--listen", "127.0.0.1:0"],
            ["--log-format", "json"],
            ["--out", &out],
        ];
        args.extend(common.as_flattened().iter().map(|arg| (*arg).to_owned()));
        args.push("checkpoint_every=0".into());
        self.spawn(&args)
    }

    /// Starts one by these arguments and no others.
    pub fn spawn(&mut self, args: &[String]) -> Result<(), Error> {
        let index = self.children.len();
        let spawn = || {
            Command::new(&self.exe)
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(File::create(self.errors(index))?)
                .spawn()
        };
        let mut child =
            spawn().map_err(|e| Error::failed(format!("cannot start {}: {e}", self.exe.display())))?;
        let stdout = child.stdout.take().expect("it is piped");
        self.children.push(child);
        let send = self.send.clone();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for line in lines.filter_map(|line| LogLine::from_json(&line).ok()) {
                if send.send(Message::Event(index, Box::new(line.event))).is_err() {
                    return;
                }
            }
            let _ = send.send(Message::Ended(index));
        });
        Ok(())
    }

    /// The next message, if one comes in time.
    pub fn next(&self, wait: Duration) -> Option<Message> {
        self.receive.recv_timeout(wait).ok()
    }

    /// Ends one at once: SIGKILL where there are signals.
    pub fn kill(&mut self, index: usize) {
        // An error means that it has ended already.
        let _ = self.children[index].kill();
        let _ = self.children[index].wait();
    }

    /// The error to show when a process ends that should not: its last lines on standard error.
    pub fn failure(&self, index: usize) -> Error {
        let text = fs::read_to_string(self.errors(index)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let words = match lines[lines.len().saturating_sub(LAST_WORDS)..].join(" ") {
            words if words.is_empty() => "nothing".into(),
            words => format!("\u{201c}{words}\u{201d}"),
        };
        Error::failed(format!(
            "a peer has ended before the run did. Its last words: {words}. `annulus doctor` may know why"
        ))
    }

    fn errors(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{index}.err"))
    }
}

fn no_folder(folder: &Path, error: &io::Error) -> Error {
    Error::failed(format!(
        "cannot make the folder {}: {error}. Set TMPDIR to a folder that can be written",
        folder.display()
    ))
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Ctrl-C, and on Unix the polite requests to end, become messages.
fn watch_signals(send: SyncSender<Message>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::spawn(move || {
        if runtime.block_on(asked_to_end()).is_ok() {
            let _ = send.send(Message::Interrupted);
        }
    });
    Ok(())
}

async fn asked_to_end() -> io::Result<()> {
    let mut requests = Signals::new()?;
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // The terminal is gone.
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            () = requests.next() => {}
            _ = hangup.recv() => {}
        }
    }
    #[cfg(not(unix))]
    requests.next().await;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    fn shell(script: &str) -> (Children, Scratch) {
        let scratch = Scratch::new();
        let mut children = Children::of("/bin/sh".into(), scratch.0.join("demo")).unwrap();
        children.spawn(&["-c".into(), script.into()]).unwrap();
        (children, scratch)
    }

    fn next(children: &Children) -> Message {
        children.next(Duration::from_secs(10)).expect("a message")
    }

    fn warning(message: Message) -> String {
        match message {
            Message::Event(0, event) => match *event {
                Event::Warning { message } => message,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn events_come_in_and_last_words_are_kept() {
        let (children, _scratch) = shell(
            r#"for i in 1 2 3 4 5 6 oh; do echo $i >&2; done; echo noise
            echo '{"time":"t","event":"warning","message":"m"}'; echo no >&2"#,
        );
        assert_eq!(warning(next(&children)), "m");
        assert!(matches!(next(&children), Message::Ended(0)));
        let told = children.failure(0).to_string();
        assert!(
            told.contains("last words: \u{201c}3 4 5 6 oh no\u{201d}"),
            "{told}"
        );
    }

    #[test]
    fn nobody_survives() {
        let (children, _scratch) =
            shell(r#"printf '{"time":"","event":"warning","message":"%s"}\n' $$; exec sleep 1000"#);
        let process = warning(next(&children));
        let alive = || {
            let mut kill = Command::new("/bin/sh");
            kill.args(["-c", &format!("kill -0 {process}")])
                .stderr(Stdio::null());
            kill.status().unwrap().success()
        };
        assert!(alive());
        let folder = children.folder.clone();
        assert!(folder.is_dir());
        drop(children);
        assert!(!alive() && !folder.exists());
    }
}
