//! A real Chromium, driven over the DevTools protocol. Tabs share one, each as if in a browser of its own (a browser
//! context); a tab that is to be stopped or to crash has a browser alone. `crate::firefox` opens tabs in a Firefox, which
//! speaks WebDriver BiDi instead: messages of the same shape with other methods.
#![allow(dead_code, reason = "each test file uses its own part")]

use crate::common::{Folder, Node, PATIENCE, digests, digests_of};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
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
pub const LISTEN: &str = "
    self.__log = [];
    const Plain = Worker;
    self.Worker = class extends Plain {
        constructor(...args) {
            super(...args);
            self.__worker = this;
            this.addEventListener('message', ({ data }) => {
                if (data.bytes) self.__file = data.bytes;
                self.__log.push({ ...data, bytes: undefined });
            });
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
    find("ANNULUS_CHROMIUM", &names)
}

/// The program that a variable of the environment names, or the first of these names that is installed.
pub fn find(variable: &str, names: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = names
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)));
    named.into_iter().chain(found).find(|file| file.is_file())
}

/// Where the build puts the page.
pub fn built_page() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_BIN_EXE_annulus")).ancestors();
    folders.nth(2).expect("a target folder").join("browser")
}

/// A browser and the page that nodes serve, or the reason to skip.
pub fn ready() -> Option<PathBuf> {
    let Some(browser) = installed() else {
        eprintln!("skipped: no Chromium is installed (Debian: chromium), so no tab can be tried");
        return None;
    };
    let page = built_page();
    if !page.join("index.html").exists() {
        eprintln!(
            "skipped: {} is not there; `cargo xtask browser` builds the page",
            page.display()
        );
        return None;
    }
    Some(browser)
}

/// The button to train on a GPU that is a program, as the adapter here is.
pub const GPU: &str = "Train anyway";

/// The button to train on the processor.
pub const CPU: &str = "Train on the processor";

/// Opens a node's page and clicks on a button to take part.
pub fn join(browser: &Path, name: &'static str, url: &str, button: &str) -> Tab {
    let mut tab = Tab::open(browser, name, url);
    tab.click(button);
    tab
}

/// Takes part as `join` does, in a browser of the tab's own.
pub fn join_alone(browser: &Path, name: &'static str, url: &str, button: &str) -> Tab {
    let mut tab = Tab::open_alone(browser, name, url);
    tab.click(button);
    tab
}

/// Asserts that a tab's rounds have the digests that the node has; returns how many they share.
pub fn assert_same(tab: &mut Tab, node: &Node) -> usize {
    let theirs = tab.digests();
    let ours = digests(node);
    let mut shared = 0;
    for (round, digest) in &theirs {
        if let Some(other) = ours.get(round) {
            assert_eq!(
                digest, other,
                "round {round}: {} and {} differ",
                tab.name, node.name
            );
            shared += 1;
        }
    }
    shared
}

/// Samples of a peer that the node's ledger counts.
pub fn weight(node: &Node, peer: &str) -> u64 {
    let log = node.log();
    let shares = log
        .iter()
        .filter_map(|seen| seen.event["members"].as_array())
        .flatten();
    let ours = shares.filter(|share| share["peer"] == *peer);
    ours.filter_map(|share| share["weight"].as_u64()).sum()
}

/// Runs a browser until its standard input ends, which is when the tests end, however they do.
const UNTIL_THE_TESTS_END: &str =
    r#"profile=$1; shift; "$@" & read -r end; kill -KILL $!; rm -rf "$profile"; kill -KILL 0"#;

/// A browser's processes.
pub struct Browser {
    child: Child,
    /// Where it listens for its driver.
    pub address: String,
    _profile: Folder,
}

impl Browser {
    fn start(program: &Path) -> Self {
        let profile = Folder::new("chromium");
        let data = format!("--user-data-dir={}", profile.0.display());
        let args = [&FLAGS[..], &[&data, "about:blank"]].concat();
        Self::launch(program, &args, profile, "DevTools listening on ")
    }

    /// Starts a browser that names its address for drivers behind these words.
    pub fn launch(program: &Path, args: &[&str], profile: Folder, words: &str) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", UNTIL_THE_TESTS_END, "sh"])
            .arg(&profile.0)
            .arg(program)
            .args(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // All its processes can be stopped at once.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().expect("the browser runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix(words).map(str::to_owned))
            .expect("the browser says where it listens");
        // Or it waits for a reader of its complaints.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address,
            _profile: profile,
        }
    }

    /// The one that tabs share. It starts with the first of them.
    fn shared(program: &Path) -> Arc<Self> {
        static SHARED: OnceLock<Arc<Browser>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(Self::start(program))).clone()
    }

    /// Sends a signal to all its processes.
    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        let done = Command::new("kill").args([signal, "--", &group]).status();
        assert!(done.expect("kill").success(), "kill {signal} {group}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            // A stopped one hears nothing.
            self.signal("-CONT");
            drop(self.child.stdin.take());
        }
        let _ = self.child.wait();
    }
}

/// A tab.
pub struct Tab {
    pub name: &'static str,
    browser: Arc<Browser>,
    /// The browser context: cookies, caches and storage that other tabs do not see.
    pub context: Value,
    target: Value,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    /// The DevTools session; none of a browser that speaks WebDriver BiDi.
    session: Option<String>,
    next: u64,
    /// All that the worker has said to the page.
    pub log: Vec<Value>,
    console: Vec<String>,
}

impl Tab {
    /// Opens a page beside other tests' tabs.
    pub fn open(program: &Path, name: &'static str, url: &str) -> Self {
        Self::open_in(Browser::shared(program), name, url)
    }

    /// Opens a page in a browser of its own, which a test may stop, kill or crash.
    pub fn open_alone(program: &Path, name: &'static str, url: &str) -> Self {
        Self::open_in(Arc::new(Browser::start(program)), name, url)
    }

    fn open_in(browser: Arc<Browser>, name: &'static str, url: &str) -> Self {
        let mut tab = Self::connect(browser, name);
        tab.context = tab.call("Target.createBrowserContext", json!({}))["browserContextId"].take();
        tab.target = tab.new_target();
        let attach = json!({"targetId": tab.target, "flatten": true});
        let session = tab.call("Target.attachToTarget", attach);
        tab.session = session["sessionId"].as_str().map(str::to_owned);
        assert!(tab.session.is_some(), "{session}");
        let workers = json!({"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true});
        tab.call("Target.setAutoAttach", workers);
        tab.call("Runtime.enable", json!({}));
        tab.call("Page.enable", json!({}));
        tab.before_scripts(LISTEN);
        tab.navigate(url);
        tab
    }

    /// Runs a script before those of pages that are opened later.
    pub fn before_scripts(&mut self, source: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": source}));
    }

    /// Opens a page in the tab.
    pub fn navigate(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
    }

    /// A driver of a browser, without a page yet.
    pub fn connect(browser: Arc<Browser>, name: &'static str) -> Self {
        let (socket, _) = tungstenite::connect(&browser.address).expect("the browser answers");
        let MaybeTlsStream::Plain(stream) = socket.get_ref() else {
            unreachable!("the address is ws://");
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self {
            name,
            browser,
            context: Value::Null,
            target: Value::Null,
            socket,
            session: None,
            next: 0,
            log: Vec::new(),
            console: Vec::new(),
        }
    }

    /// Opens an empty page in the tab's window.
    fn new_target(&mut self) -> Value {
        let blank = json!({"url": "about:blank", "browserContextId": self.context});
        self.call("Target.createTarget", blank)["targetId"].take()
    }

    /// Calls a method of the protocol and waits for its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session
            && !["Browser.", "Target.create"]
                .iter()
                .any(|of| method.starts_with(of))
        {
            message["sessionId"] = session.clone().into();
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
            Some("log.entryAdded") => self.console.push(params["text"].to_string()),
            _ => {}
        }
    }

    /// The value of an expression in the page; promises are waited for.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        if self.session.is_none() {
            return self.evaluate_in_firefox(expression);
        }
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

    /// Waits for the next round of `count` members.
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

    /// The states that the tab was in since a place in the log.
    pub fn states(&mut self, from: usize) -> Vec<String> {
        self.listen();
        let told = self.log[from.min(self.log.len())..].iter();
        let states = told.filter(|message| message["type"] == "state");
        states
            .map(|message| message["state"].as_str().expect("a state").to_owned())
            .collect()
    }

    /// Digest of each round that the tab committed.
    pub fn digests(&mut self) -> BTreeMap<u64, String> {
        self.listen();
        digests_of(self.log.iter().map(|message| &message["event"]))
    }

    /// A picture of the page.
    pub fn screenshot(&mut self, file: &Path) {
        let shot = match self.session {
            Some(_) => self.call("Page.captureScreenshot", json!({"format": "png"})),
            None => {
                let context = self.context.clone();
                self.call("browsingContext.captureScreenshot", json!({"context": context}))
            }
        };
        let text = shot["data"].as_str().expect("a picture");
        std::fs::write(file, base64(text)).expect("the picture can be written");
    }

    /// The GPU process of this browser ends, as if its driver had crashed.
    pub fn crash_gpu(&mut self) {
        assert_eq!(
            Arc::strong_count(&self.browser),
            1,
            "{}: others use this browser",
            self.name
        );
        self.next += 1;
        let crash = json!({"id": self.next, "method": "Browser.crashGpuProcess"});
        self.socket
            .send(Message::text(crash.to_string()))
            .expect("the browser takes it");
    }

    /// Another tab comes to the front: browsers slow down the one behind.
    pub fn hide(&mut self) {
        self.new_target();
        self.until("hidden", "document.visibilityState === 'hidden'");
    }

    /// The tab comes to the front again.
    pub fn show(&mut self) {
        self.call("Page.bringToFront", json!({}));
        self.until("shown", "document.visibilityState === 'visible'");
    }

    /// As the browser does with tabs that are hidden for long, and undoes when they are looked at.
    pub fn freeze(&mut self, frozen: bool) {
        let state = if frozen { "frozen" } else { "active" };
        self.call("Page.setWebLifecycleState", json!({"state": state}));
    }

    /// Sends a signal to all processes of the tab's own browser.
    pub fn signal(&self, signal: &str) {
        assert_eq!(
            Arc::strong_count(&self.browser),
            1,
            "{}: others use this browser",
            self.name
        );
        self.browser.signal(signal);
    }

    /// The tab's own browser ends without a word.
    pub fn kill(&self) {
        self.signal("-KILL");
    }

    /// The tab's log so far, without rounds.
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
        if self.session.is_none() {
            return;
        }
        // Ends all that it has open. A browser that is gone cannot answer.
        self.next += 1;
        let dispose = json!({
            "id": self.next,
            "method": "Target.disposeBrowserContext",
            "params": {"browserContextId": self.context},
        });
        let _ = self.socket.send(Message::text(dispose.to_string()));
    }
}

/// Decodes base 64 (RFC 4648), padding and all.
pub fn base64(text: &str) -> Vec<u8> {
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
