//! A real Firefox, driven over WebDriver BiDi. It takes one driver, so each tab has a browser of its own.

use crate::chromium::{Browser, LISTEN, Tab, find};
use crate::common::Folder;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// No talk to the outside. Firefox on Linux keeps WebGPU to itself, and software from it, unless a person says otherwise.
const PREFERENCES: [(&str, bool); 6] = [
    ("app.update.enabled", false),
    ("network.captive-portal-service.enabled", false),
    ("network.connectivity-service.enabled", false),
    ("dom.webgpu.enabled", true),
    ("dom.webgpu.workers.enabled", true),
    ("gfx.webgpu.ignore-blocklist", true),
];

/// Where the browser is, or the reason to skip.
pub fn ready() -> Option<PathBuf> {
    let found = find("ANNULUS_FIREFOX", &["firefox-esr", "firefox"]);
    if found.is_none() {
        eprintln!("skipped: no Firefox is installed (Debian: firefox-esr), so no tab can be tried in it");
    }
    found
}

/// Opens a page, with the software GPU or as Firefox comes.
pub fn open(program: &Path, name: &'static str, url: &str, gpu: bool) -> Tab {
    let profile = Folder::new("firefox");
    let told = |(name, value): &(&str, bool)| format!("user_pref({name:?}, {value});\n");
    let count = if gpu { PREFERENCES.len() } else { 3 };
    let preferences: String = PREFERENCES[..count].iter().map(told).collect();
    std::fs::write(profile.0.join("user.js"), preferences).expect("writable");
    let folder = profile.join("");
    let args = [
        "--headless",
        "--no-remote",
        "--remote-debugging-port",
        "0",
        "--profile",
        &folder,
    ];
    let mut browser = Browser::launch(program, &args, profile, "WebDriver BiDi listening on ");
    browser.address += "/session";
    let mut tab = Tab::connect(Arc::new(browser), name);
    tab.call("session.new", json!({"capabilities": {}}));
    tab.call("session.subscribe", json!({"events": ["log.entryAdded"]}));
    let listen = format!("() => {{ {LISTEN} }}");
    tab.call("script.addPreloadScript", json!({"functionDeclaration": listen}));
    tab.context = tab.call("browsingContext.create", json!({"type": "window"}))["context"].take();
    let context = tab.context.clone();
    tab.call(
        "browsingContext.navigate",
        json!({"context": context, "url": url, "wait": "complete"}),
    );
    tab
}

impl Tab {
    /// The value of an expression, as `evaluate` gives it. BiDi has a form of its own for values, so the page makes JSON of it.
    pub fn evaluate_in_firefox(&mut self, expression: &str) -> Value {
        let expression = format!("(async () => JSON.stringify(await ({expression})) ?? 'null')()");
        let target = json!({"context": self.context});
        let params = json!({"expression": expression, "target": target, "awaitPromise": true});
        let result = self.call("script.evaluate", params);
        let text = result["result"]["value"].as_str();
        let text = text.unwrap_or_else(|| panic!("{}: {expression}: {result}", self.name));
        serde_json::from_str(text).expect("the page writes JSON")
    }
}
