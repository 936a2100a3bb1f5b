//! A real Chromium, driven over the DevTools protocol: one process a tab, so that one can crash without the others.
#![allow(dead_code, reason = "each test file uses its own part")]

use crate::common::{Folder, PATIENCE};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

/// WebGPU without a GPU, and no talk to the outside.
const FLAGS: [&str; 18] = [
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--mute-audio",
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan",
    "--use-angle=vulkan",
    "--use-vulkan=swiftshader",
    "--use-webgpu-adapter=swiftshader",
    "--disable-vulkan-surface",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
    "--window-size=1280,800",
];

/// Keeps what the worker says, for the test to read; changes nothing.
const LISTEN: &str = "
    self.__log = [];
    const Plain = Worker;
    self.Worker = class extends Plain {
        constructor(...args) {
            super(...args);
            self.__worker = this;
            this.addEventListener('message', (event) => self.__log.push(event.data));
        }
    };
";

/// Where the browser is, if it is installed.
pub fn installed() -> Option<PathBuf> {
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "chrome",
    ];
    let named = std::env::var_os("ANNULUS_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = names
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)));
    named.into_iter().chain(found).find(|file| file.is_file())
}

/// A browser with one tab.
pub struct Tab {
    pub name: &'static str,
    child: Child,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    session: String,
    next: u64,
    /// All that the worker has said to the page.
    pub log: Vec<Value>,
    console: Vec<String>,
    _profile: Folder,
}

impl Tab {
    /// Opens a page in a browser of its own.
    pub fn open(browser: &Path, name: &'static str, url: &str) -> Self {
        let profile = Folder::new(&format!("chromium-{name}"));
        let mut command = Command::new(browser);
        command
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.0.display()))
            .arg("about:blank");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the browser runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("DevTools listening on ").map(str::to_owned))
            .expect("the browser says where it listens");
        // Or it waits for a reader of its complaints.
        std::thread::spawn(move || lines.for_each(drop));
        let (socket, _) = tungstenite::connect(&address).expect("the browser answers");
        let MaybeTlsStream::Plain(stream) = socket.get_ref() else {
            unreachable!("the address is ws://");
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut tab = Self {
            name,
            child,
            socket,
            session: String::new(),
            next: 0,
            log: Vec::new(),
            console: Vec::new(),
            _profile: profile,
        };
        let target = tab.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = tab.call("Target.attachToTarget", attach);
        tab.session = session["sessionId"].as_str().expect("a session").to_owned();
        let workers = json!({"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true});
        tab.call("Target.setAutoAttach", workers);
        tab.call("Runtime.enable", json!({}));
        tab.call("Page.enable", json!({}));
        tab.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": LISTEN}));
        tab.call("Page.navigate", json!({"url": url}));
        tab
    }

    /// Calls a method of the protocol and waits for its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() && !method.starts_with("Browser.") {
            message["sessionId"] = self.session.clone().into();
        }
        self.socket
            .send(Message::text(message.to_string()))
            .expect("the browser takes it");
        loop {
            let answer = self.socket.read().expect("the browser answers");
            let Ok(text) = answer.to_text() else { continue };
            let Ok(answer) = serde_json::from_str::<Value>(text) else {
                continue;
            };
            if answer["id"] == id {
                assert!(
                    answer["error"].is_null(),
                    "{}: {method}: {}",
                    self.name,
                    answer["error"]
                );
                return answer["result"].clone();
            }
            self.hear(&answer);
        }
    }

    /// Keeps what may explain a failure.
    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Target.attachedToTarget") => {
                // Without waiting for the answer: this runs within another call.
                self.next += 1;
                let enable =
                    json!({"id": self.next, "method": "Runtime.enable", "sessionId": params["sessionId"]});
                let _ = self.socket.send(Message::text(enable.to_string()));
            }
            Some("Runtime.consoleAPICalled") => self.console.push(params["args"].to_string()),
            Some("Runtime.exceptionThrown") => self.console.push(params["exceptionDetails"].to_string()),
            _ => {}
        }
    }

    /// The value of an expression in the page; promises are waited for.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{}: {expression}: {result}",
            self.name
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, what: &str, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluate(expression) != true {
            assert!(
                Instant::now() < deadline,
                "{}: never {what}\n{}",
                self.name,
                self.story()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Clicks on the first button with this text.
    pub fn click(&mut self, text: &str) {
        let find = format!(
            "[...document.querySelectorAll('button')].find((b) => b.textContent.trim() === {text:?} && !b.disabled)"
        );
        self.until(&format!("a button {text:?}"), &format!("Boolean({find})"));
        self.evaluate(&format!("{find}.click()"));
    }

    /// Takes over what the worker has said since.
    pub fn listen(&mut self) {
        if let Value::Array(new) = self.evaluate("self.__log.splice(0)") {
            self.log.extend(new);
        }
    }

    /// Waits for a message of the worker that fits, at or after a place in the log.
    pub fn wait_from(&mut self, from: usize, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.listen();
            if let Some(message) = self.log[from.min(self.log.len())..]
                .iter()
                .find(|message| fits(message))
            {
                return message.clone();
            }
            assert!(
                Instant::now() < deadline,
                "{}: never {what}\n{}",
                self.name,
                self.story()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn wait(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.wait_from(0, what, fits)
    }

    /// Waits for the next round of so many members.
    pub fn members(&mut self, count: usize) -> Value {
        self.listen();
        let from = self.log.len();
        self.wait_from(from, &format!("a round of {count}"), |message| {
            message["event"]["members"]
                .as_array()
                .is_some_and(|members| members.len() == count)
        })
    }

    /// The tab's name in the run.
    pub fn peer(&mut self) -> String {
        let ready = self.wait("ready", |message| message["event"]["event"] == "ready");
        ready["event"]["peer"].as_str().expect("a name").to_owned()
    }

    /// Digest of each round that the tab committed.
    pub fn digests(&mut self) -> BTreeMap<u64, String> {
        self.listen();
        let rounds = self
            .log
            .iter()
            .map(|message| &message["event"])
            .filter(|event| event["event"] == "round");
        rounds
            .map(|event| {
                let digest = event["digest"].as_str().expect("a digest");
                (event["round"].as_u64().expect("a number"), digest.to_owned())
            })
            .collect()
    }

    /// A picture of the page.
    pub fn screenshot(&mut self, file: &Path) {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let text = shot["data"].as_str().expect("a picture");
        std::fs::write(file, base64(text)).expect("the picture can be written");
    }

    /// The GPU process of this browser ends, as if its driver had crashed.
    pub fn crash_gpu(&mut self) {
        self.next += 1;
        let crash = json!({"id": self.next, "method": "Browser.crashGpuProcess"});
        self.socket
            .send(Message::text(crash.to_string()))
            .expect("the browser takes it");
    }

    /// The whole browser ends without a word.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        let _ = self.child.wait();
    }

    /// What the tab has said so far, rounds left out.
    pub fn story(&self) -> String {
        let told = self
            .log
            .iter()
            .filter(|message| message["event"]["event"] != "round");
        let mut lines: Vec<String> = told.map(ToString::to_string).collect();
        lines.extend(self.console.iter().cloned());
        lines.join("\n")
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.name, self.story());
        }
        self.kill();
    }
}

/// Decodes base 64 (RFC 4648), padding and all.
fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(value).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for four in digits.chunks(4) {
        let all = four
            .iter()
            .enumerate()
            .fold(0u32, |all, (i, d)| all | u32::from(*d) << (18 - 6 * i));
        bytes.extend(&all.to_be_bytes()[1..four.len()]);
    }
    bytes
}
