//! What a tab's link carries: frames of several sizes, each way and both ways at once, with several windows. A
//! measurement, not a test: `cargo xtask bench-browser --link` runs it and prints a table.

use crate::chromium::Tab;
use crate::common::*;
use annulus::net::config::QuicConfig;
use annulus::net::identity::Identity;
use annulus::net::link::{Frame, Lane, Link, LinkEvent, next_event};
use annulus::net::quic::QuicLink;
use annulus::net::ticket::{Secret, Ticket};
use annulus::web::hosts::Hosts;
use annulus::web::{About, Site, bind, tls_self_signed};
use annulus_core::invitation::{Invitation, Role, Root};
use annulus_core::{PeerId, RunId};
use bytes::Bytes;
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Bytes in each measurement, a multiple of every frame.
const BYTES: usize = 16 << 20;
const FRAMES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const WINDOWS: [usize; 7] = [
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];
/// Runs of which the median counts.
const TIMES: usize = 3;

#[test]
#[ignore = "a measurement: cargo xtask bench-browser --link"]
fn bytes_per_second() {
    let browser = crate::chromium::installed().expect("Chromium is installed");
    let page = Path::new(env!("CARGO_BIN_EXE_annulus"))
        .ancestors()
        .nth(2)
        .expect("a target folder")
        .join("browser-link");
    assert!(
        page.join("index.html").exists(),
        "the page is built by `cargo xtask browser link`"
    );
    let _turn = beside();
    println!(
        "MB/s, medians of {TIMES} x {} MiB; load average {}",
        BYTES >> 20,
        load()
    );
    for (name, to_send, to_take) in [
        ("to the tab", 0, BYTES),
        ("from it", BYTES, 0),
        ("both", BYTES, BYTES),
    ] {
        print!("\n{name}: window \\ frame");
        FRAMES
            .iter()
            .for_each(|frame| print!(" {:>7}", format!("{}K", frame >> 10)));
        println!();
        for window in WINDOWS {
            let rates = with_window(&browser, &page, window, to_send, to_take);
            print!("{name}: {:>6} KiB     ", window >> 10);
            rates.iter().for_each(|rate| print!(" {rate:>7.1}"));
            println!();
        }
    }
    println!("load average {}", load());
}

/// A rate for each frame.
fn with_window(browser: &Path, page: &Path, window: usize, to_send: usize, to_take: usize) -> Vec<f64> {
    let runtime = Runtime::new().expect("a runtime");
    let within = runtime.enter();
    let (run, run_key) = (RunId([7; 32]), Secret::generate().key());
    let (key, all) = (run_key.peer(), Invitation::of_run(run_key));
    let root = Root { run, key };
    let ticket = Ticket::made_from(&all, root, Role::Contribute, None, None).expect("a ticket");
    let config = QuicConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        local_tab_window: window as u64,
        receive_window: window as u32,
        ..QuicConfig::new(root, all, Bytes::new())
    };
    let mut link = QuicLink::start(&Identity::generate(), config).expect("a socket");
    let at = link.local_addr();
    let about = About {
        peer: link.peer().to_hex(),
        run: run.to_hex(),
        certificates: link.certificates(),
        port: at.port(),
        addresses: vec![at.to_string()],
        title: String::new(),
        about: String::new(),
        task: "none".to_owned(),
        parameters: 0,
        state_bytes: 0,
        data_bytes: Some(0),
        spans: 0,
    };
    let tls = tls_self_signed(link.certificates());
    let _site = Site::start(
        bind(at).expect("the same port"),
        tls,
        Hosts::new([].iter()),
        Some(page.to_path_buf()),
        about,
        None,
        link.known(),
    );
    let ticket = Ticket {
        addrs: vec![at],
        ..ticket
    };
    drop(within);
    let url = format!("http://localhost:{}/#{ticket}", at.port());
    let mut tab = Tab::open_alone(browser, "link", &url);
    let rates = runtime.block_on(async {
        let patience = Duration::from_secs(60);
        let measured = async {
            let peer = loop {
                if let Some(LinkEvent::Up { peer, .. }) = next_event(&mut link).await {
                    break peer;
                }
            };
            // Congestion control begins slowly.
            once(&mut link, peer, FRAMES[2], BYTES, BYTES).await;
            let mut rates = Vec::new();
            for frame in FRAMES {
                let mut all = Vec::new();
                for _ in 0..TIMES {
                    all.push(once(&mut link, peer, frame, to_send, to_take).await);
                }
                all.sort_by(f64::total_cmp);
                rates.push(all[TIMES / 2]);
            }
            rates
        };
        tokio::time::timeout(patience, measured).await
    });
    rates.unwrap_or_else(|_| {
        panic!(
            "the tab says nothing more: {:?}",
            tab.evaluate("document.body.innerText")
        )
    })
}

/// MB/s of one way.
async fn once(link: &mut QuicLink, peer: PeerId, frame: usize, from_tab: usize, to_tab: usize) -> f64 {
    let start = Instant::now();
    let order = json!({"send": from_tab, "frame": frame, "expect": to_tab}).to_string();
    link.send(peer, Lane::Control, Bytes::from(order).into())
        .expect("an order fits");
    let payload = Bytes::from(vec![0xa5; frame]);
    for _ in 0..to_tab / frame {
        link.send(peer, Lane::Bulk, Frame::from(payload.clone()))
            .expect("all fit the queue");
    }
    let (mut missing, mut told) = (from_tab, to_tab == 0);
    while missing > 0 || !told {
        match next_event(link).await.expect("the link lives") {
            LinkEvent::Frame {
                lane: Lane::Bulk,
                bytes,
                ..
            } => missing -= bytes.len(),
            LinkEvent::Frame { .. } => told = true,
            LinkEvent::Down { reason, .. } => panic!("the link broke: {reason}"),
            _ => {}
        }
    }
    from_tab.max(to_tab) as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
