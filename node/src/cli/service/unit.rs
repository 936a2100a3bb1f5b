//! The files that service managers are given. Pure: what to run goes in, text comes out.
//!
//! A peer's exit code says whether to start it again ([`Exit`]). After 0 the run is finished, and 1, 2 and 77 need a person. After
//! 69, 75 and any crash, another try may succeed.

use crate::cli::exit::Exit;
use std::path::PathBuf;

/// A peer to be looked after.
pub struct Service {
    pub name: String,
    pub program: PathBuf,
    /// Its arguments.
    pub command: Vec<String>,
    /// Where it runs.
    pub folder: PathBuf,
}

/// Codes after which nobody starts the same again.
const NEEDS_A_PERSON: [Exit; 3] = [Exit::Failed, Exit::Usage, Exit::Barred];

/// What systemd calls a service.
pub fn systemd_name(name: &str) -> String {
    format!("annulus-{name}.service")
}

/// What launchd calls a service.
pub fn label(name: &str) -> String {
    format!("annulus.{name}")
}

impl Service {
    /// A unit for systemd's user manager. It forbids what a peer never does. A peer needs sockets, its folder, and drivers that
    /// generate code.
    pub fn systemd(&self) -> String {
        let program = self.program.display().to_string();
        let words: Vec<String> = [&program]
            .into_iter()
            .chain(&self.command)
            .map(|word| quoted(word))
            .collect();
        let person = NEEDS_A_PERSON.map(|exit| (exit as u8).to_string()).join(" ");
        format!(
            "[Unit]\n\
             Description=Annulus, a peer in a training run ({name})\n\
             StartLimitIntervalSec=0\n\
             \n\
             [Service]\n\
             WorkingDirectory={folder}\n\
             ExecStart={command}\n\
             Restart=on-failure\n\
             RestartSec=30\n\
             RestartForceExitStatus={left}\n\
             RestartPreventExitStatus={person}\n\
             SuccessExitStatus={left}\n\
             TimeoutStopSec=30\n\
             UMask=0077\n\
             NoNewPrivileges=yes\n\
             LockPersonality=yes\n\
             RestrictRealtime=yes\n\
             RestrictNamespaces=yes\n\
             RestrictSUIDSGID=yes\n\
             RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n\
             SystemCallArchitectures=native\n\
             \n\
             [Install]\n\
             WantedBy=default.target\n",
            name = self.name,
            // Of a path nothing is quoted; a percent sign still means something.
            folder = self.folder.display().to_string().replace('%', "%%"),
            command = words.join(" "),
            left = Exit::Left as u8,
        )
    }

    /// A property list for launchd, which only knows whether a program succeeded: a shell between them tells it so where there
    /// is nothing to try again.
    pub fn launchd(&self) -> String {
        let over: Vec<String> = [Exit::Done]
            .iter()
            .chain(&NEEDS_A_PERSON)
            .map(|exit| (*exit as u8).to_string())
            .collect();
        let script = format!(
            "\"$@\" & peer=$!; trap 'kill -TERM $peer' TERM; wait $peer; code=$?; \
             [ $code -gt 128 ] && {{ wait $peer; code=$?; }}; case $code in {}) exit 0;; *) exit $code;; esac",
            over.join("|")
        );
        let program = self.program.display().to_string();
        let words = ["/bin/sh", "-c", &script, "annulus", &program].map(str::to_owned);
        let words: String = words
            .iter()
            .chain(&self.command)
            .map(|word| format!("    <string>{}</string>\n", escaped(word)))
            .collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
             <plist version=\"1.0\">\n<dict>\n  \
             <key>Label</key><string>{label}</string>\n  \
             <key>ProgramArguments</key>\n  <array>\n{words}  </array>\n  \
             <key>WorkingDirectory</key><string>{folder}</string>\n  \
             <key>RunAtLoad</key><true/>\n  \
             <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>\n  \
             <key>ThrottleInterval</key><integer>30</integer>\n  \
             <key>ExitTimeOut</key><integer>30</integer>\n  \
             <key>ProcessType</key><string>Background</string>\n  \
             <key>Umask</key><integer>63</integer>\n\
             </dict>\n</plist>\n",
            label = label(&self.name),
            folder = escaped(&self.folder.display().to_string()),
        )
    }
}

/// A word as systemd reads it in a command: nothing in it means anything.
fn quoted(word: &str) -> String {
    let escaped = word
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$");
    format!("\"{escaped}\"")
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use std::collections::BTreeMap;
    use std::process::Command;
    use xmltree::Element;

    fn service(folder: PathBuf) -> Service {
        Service {
            name: "night".into(),
            program: "/bin/echo".into(),
            command: ["join", "@a b", "lr=50%", "$HOME", "\"q\\", "<&>"]
                .map(str::to_owned)
                .into(),
            folder,
        }
    }

    #[test]
    fn systemd_finds_nothing_wrong_with_the_unit() {
        let scratch = Scratch::new();
        let text = service(scratch.0.clone()).systemd();
        for line in [
            "ExecStart=\"/bin/echo\" \"join\" \"@a b\" \"lr=50%%\" \"$$HOME\" \"\\\"q\\\\\" \"<&>\"",
            "RestartForceExitStatus=75",
            "RestartPreventExitStatus=1 2 77",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let file = scratch.0.join(systemd_name("night"));
        std::fs::write(&file, text).unwrap();
        let verify = Command::new("systemd-analyze")
            .args(["--user", "verify"])
            .arg(&file)
            .env("XDG_RUNTIME_DIR", &scratch.0)
            .output();
        match verify {
            Err(error) => println!("skipped: systemd-analyze cannot be run ({error})"),
            Ok(verify) => {
                let told = String::from_utf8_lossy(&verify.stderr);
                assert!(verify.status.success() && !told.contains("night"), "{told}");
            }
        }
    }

    #[test]
    fn launchd_reads_the_list_as_it_is_meant() {
        let service = service("/tmp/a & b".into());
        let root = Element::parse(service.launchd().as_bytes()).expect("well-formed XML");
        assert_eq!((root.name.as_str(), root.children.len()), ("plist", 1));
        let dict = root.get_child("dict").expect("a dictionary");
        let all: Vec<&Element> = dict
            .children
            .iter()
            .filter_map(|child| child.as_element())
            .collect();
        let mut entries = BTreeMap::new();
        for pair in all.chunks(2) {
            let [key, value] = pair else {
                panic!("a key without a value")
            };
            assert_eq!(key.name, "key");
            let key = key.get_text().expect("a name").into_owned();
            assert!(entries.insert(key, *value).is_none(), "a key twice");
        }
        let text = |key: &str| entries[key].get_text().expect("a text").into_owned();
        assert_eq!(text("Label"), "annulus.night");
        assert_eq!(text("WorkingDirectory"), "/tmp/a & b");
        // Octal 077, as the unit has it.
        assert_eq!(
            (entries["Umask"].name.as_str(), text("Umask")),
            ("integer", "63".into())
        );
        assert_eq!(entries["RunAtLoad"].name, "true");
        let again = entries["KeepAlive"].get_child("false");
        assert!(
            again.is_some() && entries["KeepAlive"].name == "dict",
            "it is started again unless it has succeeded"
        );
        let words = entries["ProgramArguments"]
            .children
            .iter()
            .filter_map(|child| child.as_element());
        let words: Vec<String> = words
            .map(|word| {
                assert_eq!(word.name, "string");
                word.get_text().unwrap_or_default().into_owned()
            })
            .collect();
        assert_eq!(words[..2], ["/bin/sh", "-c"]);
        assert_eq!(
            words[4..],
            [&["/bin/echo".to_owned()][..], &service.command].concat()
        );
    }

    #[test]
    fn launchd_is_told_to_try_again_only_where_that_helps() {
        let plist = service("/tmp".into()).launchd();
        assert!(
            plist.contains("<string>&lt;&amp;&gt;</string>")
                && plist.contains("<string>annulus.night</string>")
        );
        let script = plist
            .lines()
            .find(|line| line.contains("$@"))
            .expect("a script")
            .trim();
        let script = script
            .trim_start_matches("<string>")
            .trim_end_matches("</string>");
        let script = script
            .replace("&gt;", ">")
            .replace("&lt;", "<")
            .replace("&amp;", "&");
        let code_after = |code: i32| {
            let peer = format!("exit {code}");
            let status = Command::new("/bin/sh")
                .args(["-c", &script, "annulus", "/bin/sh", "-c", &peer])
                .status();
            status.expect("a shell").code()
        };
        for code in [0, 1, 2, 77] {
            assert_eq!(code_after(code), Some(0), "{code}");
        }
        for code in [69, 75, 101] {
            assert_eq!(code_after(code), Some(code));
        }
    }
}
