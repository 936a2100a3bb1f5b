//! The script for Slurm in `examples/deploy`, in a queue of this very machine: asked to leave, requeued, and run to the end.
//! Skipped where Slurm is not installed, or this user may not run it (Debian: `slurmctld slurmd slurm-client`).

use crate::common::*;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A queue of one machine.
struct Slurm {
    daemons: Vec<Child>,
    folder: Folder,
}

impl Slurm {
    fn start() -> Option<Self> {
        let is_there = |name: &str| Command::new(name).arg("-V").output().is_ok();
        let is_root = Command::new("id")
            .arg("-u")
            .output()
            .is_ok_and(|id| id.stdout == b"0\n");
        if !is_root || !["slurmctld", "slurmd", "sbatch"].into_iter().all(is_there) {
            eprintln!("skipped: Slurm is not installed, or this user may not run it");
            return None;
        }
        let folder = Folder::new("slurm");
        let host = Command::new("hostname")
            .arg("-s")
            .output()
            .expect("hostname")
            .stdout;
        let (host, at) = (
            String::from_utf8_lossy(&host).trim().to_owned(),
            folder.0.display(),
        );
        for name in ["state", "spool"] {
            std::fs::create_dir(folder.join(name)).expect("a folder");
        }
        let config = format!(
            "ClusterName=one\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort=26817\nSlurmdPort=26818\n\
             AuthType=auth/none\nCredType=cred/none\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\n\
             SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.pid\n\
             SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd.log\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n\
             SlurmdParameters=config_overrides\nNodeName={host} NodeAddr=127.0.0.1 CPUs=4\n\
             PartitionName=all Nodes=ALL Default=YES State=UP\n"
        );
        std::fs::write(folder.join("slurm.conf"), config).expect("written");
        let mut slurm = Self {
            daemons: Vec::new(),
            folder,
        };
        for args in [&["slurmctld", "-D", "-i"][..], &["slurmd", "-D"]] {
            let mut daemon = slurm.command(args);
            let daemon = daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            slurm.daemons.push(daemon.expect("it starts"));
        }
        slurm.wait("a machine", |slurm| {
            slurm.say(&["sinfo", "-h", "-o", "%T"]) == "idle"
        });
        Some(slurm)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(args[0]);
        command
            .args(&args[1..])
            .env("SLURM_CONF", self.folder.join("slurm.conf"))
            .current_dir(&self.folder.0)
            .stdin(Stdio::null());
        command
    }

    fn say(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(10).collect();
            assert!(Instant::now() < deadline, "never saw {what}: {end:#?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for job in self.say(&["squeue", "-h", "-o", "%i"]).lines() {
            self.say(&["scancel", "--signal=KILL", "--full", job]);
        }
        for daemon in self.daemons.iter_mut().rev() {
            // SIGTERM: they have children of their own to end.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn a_job_that_is_asked_to_leave_is_requeued_and_comes_to_its_end() {
    let _turn = beside();
    let Some(slurm) = Slurm::start() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/deploy/slurm.sh");
    let (script, log) = (script.display().to_string(), slurm.folder.join("log"));
    let exports = format!("--export=ALL,ANNULUS={}", env!("CARGO_BIN_EXE_annulus"));
    let submit = [
        "sbatch",
        "--parsable",
        "--open-mode=append",
        "--output",
        &log,
        &exports,
        &script,
    ];
    let peer = [
        "--task",
        "digits",
        "--device",
        "cpu",
        "--listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ];
    let settings = [
        "rounds=1500",
        "train=500",
        "test=100",
        "checkpoint_every=50",
        // On one machine so small a model is no faster with more tasks.
        "stand_aside=off",
    ];
    let job = slurm.say(&[&submit[..], &peer, &settings].concat());
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    let has_round_of = |text: &str, members: usize| {
        let events = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let mut rounds = events.filter(|event: &serde_json::Value| event["event"] == "round");
        rounds.any(|round| {
            round["members"]
                .as_array()
                .is_some_and(|all| all.len() == members)
        })
    };
    slurm.wait("three members", |_| has_round_of(&text(), 3));
    // As before the job's time is over.
    slurm.say(&["scancel", "--signal=USR1", &job]);
    let state = |slurm: &Slurm| slurm.say(&["squeue", "-h", "-o", "%T", "-j", &job]);
    slurm.wait("that it is requeued", |slurm| state(slurm) == "PENDING");
    let before = text();
    assert!(
        before.contains("leaving after this round") && !before.contains("\"round\":1500"),
        "{before}"
    );
    // Slurm would wait for two minutes.
    slurm.say(&["scontrol", "update", &format!("JobId={job}"), "StartTime=now"]);
    slurm.wait("that it runs again", |_| {
        text().contains("going on with the run in")
    });
    slurm.wait("its end", |slurm| {
        slurm
            .say(&["scontrol", "show", "job", &job])
            .contains("JobState=COMPLETED")
    });
    let shown = slurm.say(&["scontrol", "show", "job", &job]);
    assert!(shown.contains("ExitCode=0:0"), "{shown}");
    assert!(has_round_of(&text()[before.len()..], 3));
    let report = inspect(&slurm.folder.join("runs/digits"));
    assert_eq!(report["audit"]["sound"], true, "{report}");
    assert!(slurm.folder.0.join("run.finished").is_file());
    // One process alone makes the bits that the job's tasks have made, over both of its turns.
    let replayed = run(&["replay", &slurm.folder.join("runs/digits"), "--json"]);
    let text = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert!(
        replayed.status.success() && text.contains("\"verdict\":\"exact\""),
        "{text}"
    );
}
