//! Hosts, routers and the wire between them: namespaces with virtual cables, gone when this is dropped.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The router or firewall in front of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Nothing.
    Public,
    /// A router that lets in what answers, from where it was asked, and keeps ports as they are.
    Home,
    /// One that takes any port, another for each destination.
    RandomHome,
    /// Two of the first sort.
    DoubleHome,
    /// One that passes ports on where it is asked to.
    MappedHome,
    /// One that translates nothing, as there is IPv6 alone, and lets ports in where it is asked to.
    PinholeHome,
    /// A firewall of its own that lets in what answers.
    Firewalled,
    /// Nothing, but there is no IPv4.
    OnlyIpv6,
    /// Nothing, but nobody has given it an address.
    Unaddressed,
    /// Nothing, but others of its sort cannot be reached.
    Apart,
}

impl Host {
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Home => "home",
            Self::RandomHome => "home, random ports",
            Self::DoubleHome => "home, two routers",
            Self::MappedHome => "home, UPnP",
            Self::PinholeHome => "IPv6 home, PCP",
            Self::Firewalled => "firewall",
            Self::OnlyIpv6 => "IPv6 alone",
            Self::Unaddressed => "no address",
            Self::Apart => "apart",
        }
    }

    fn routers(self) -> usize {
        match self {
            Self::Home | Self::RandomHome | Self::MappedHome | Self::PinholeHome => 1,
            Self::DoubleHome => 2,
            Self::Public | Self::Firewalled | Self::OnlyIpv6 | Self::Unaddressed | Self::Apart => 0,
        }
    }
}

/// Whether it has, or its router has, an IPv6 address on the internet.
fn has_ipv6(host: Host) -> bool {
    matches!(
        host,
        Host::Public | Host::Firewalled | Host::OnlyIpv6 | Host::Apart | Host::PinholeHome
    )
}

/// Why this machine cannot do it, if it cannot.
pub fn possible() -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("network namespaces are Linux's".into());
    }
    for program in ["ip", "nft"] {
        if !has(program) {
            return Err(format!("there is no program {program}"));
        }
    }
    let name = format!("nl{}t", std::process::id());
    run(&format!(
        "ip netns add {name} && ip netns exec {name} nft list ruleset; ok=$?; ip netns del {name}; exit $ok"
    ))
    .map_err(|why| format!("cannot make a network namespace: {why}"))
}

/// Whether a program is there.
pub fn has(program: &str) -> bool {
    run(&format!("command -v {program}")).is_ok()
}

/// The namespaces of one case.
pub struct Wires {
    /// What their names begin with, so that cases at once would not meet.
    prefix: String,
    hosts: usize,
    spaces: Vec<String>,
    daemon: Option<(String, Child)>,
}

impl Wires {
    /// Lays all wires for these hosts. Host `i` has 5.0.0.`i + 1` and 2a00::`i + 1` on the internet, or its router has.
    pub fn lay(hosts: &[Host], scratch: &Path) -> Result<Self, String> {
        let mut wires = Self {
            prefix: format!("nl{}", std::process::id() % 100_000),
            hosts: hosts.len(),
            spaces: Vec::new(),
            daemon: None,
        };
        let net = wires.space("n")?;
        wires.within(
            &net,
            "ip link add br0 type bridge && ip link set br0 up && ip addr add 5.0.0.254/24 dev br0",
        )?;
        for (at, host) in hosts.iter().enumerate() {
            wires.host(&net, at, *host)?;
        }
        let apart: Vec<usize> = (0..hosts.len()).filter(|at| hosts[*at] == Host::Apart).collect();
        for &at in &apart {
            let others = apart.iter().filter(|other| **other != at);
            for other in others.map(|other| other + 1) {
                let rules = format!(
                    "table inet apart {{ chain i {{ type filter hook input priority 0; ip saddr 5.0.0.{other} drop; \
                     ip6 saddr 2a00::{other} drop; }}; }}"
                );
                wires.within(&wires.name(&format!("h{at}")), &format!("nft '{rules}'"))?;
            }
        }
        let serves = |host: &Host| matches!(host, Host::MappedHome | Host::PinholeHome);
        if let Some(at) = hosts.iter().position(serves) {
            if hosts[at] == Host::PinholeHome {
                wires.lead_to(at, hosts)?;
            }
            wires.serve_ports(at, hosts[at], scratch)?;
        }
        Ok(wires)
    }

    /// Tells the others where the IPv6 network of a home is.
    fn lead_to(&self, home: usize, hosts: &[Host]) -> Result<(), String> {
        let number = home + 1;
        let others = (0..hosts.len()).filter(|at| *at != home && has_ipv6(hosts[*at]));
        for at in others {
            self.within(
                &self.name(&format!("h{at}")),
                &format!("ip route add 2a01:{number}::/64 via 2a00::{number}"),
            )?;
        }
        Ok(())
    }

    /// A program to be started at a host.
    pub fn command(&self, at: usize, program: &Path) -> Command {
        assert!(at < self.hosts, "there are {} hosts", self.hosts);
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name(&format!("h{at}"))])
            .arg(program);
        command
    }

    /// The rules by which the router still forwards or admits traffic, if any.
    pub fn mapped(&self) -> Option<String> {
        let (router, _) = self.daemon.as_ref()?;
        let rules = output(&format!("ip netns exec {router} nft list ruleset"));
        let left = rules.lines().filter(|line| {
            line.contains(" dnat ip to ") || line.contains(" th dport ") && line.contains(" accept")
        });
        Some(left.map(str::trim).collect::<Vec<_>>().join("; "))
    }

    fn name(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }

    fn space(&mut self, what: &str) -> Result<String, String> {
        let name = self.name(what);
        run(&format!("ip netns add {name}"))?;
        self.spaces.push(name.clone());
        self.within(&name, "ip link set lo up")?;
        Ok(name)
    }

    fn within(&self, space: &str, script: &str) -> Result<(), String> {
        let done = Command::new("ip")
            .args(["netns", "exec", space, "sh", "-c", script])
            .output();
        judge(script, done)
    }

    /// A cable between two namespaces, each end under its own name there.
    fn cable(&self, (one, end): (&str, &str), (other, other_end): (&str, &str)) -> Result<(), String> {
        run(&format!(
            "ip link add {end} netns {one} type veth peer name {other_end} netns {other}"
        ))?;
        self.within(one, &format!("ip link set {end} up"))?;
        self.within(other, &format!("ip link set {other_end} up"))
    }

    /// A host and what it is behind.
    fn host(&mut self, net: &str, at: usize, host: Host) -> Result<(), String> {
        let inner = self.space(&format!("h{at}"))?;
        // From the internet inwards: who has the address there, and each router's network behind it.
        let mut outer = inner.clone();
        let mut below = Vec::new();
        for depth in 0..host.routers() {
            let router = self.space(&format!("r{at}{depth}"))?;
            below.push(router);
        }
        if let Some(router) = below.first() {
            outer = router.clone();
        }
        self.cable((&outer, "wan"), (net, &format!("p{at}")))?;
        self.within(net, &format!("ip link set p{at} master br0"))?;
        let number = at + 1;
        if !matches!(host, Host::OnlyIpv6 | Host::PinholeHome | Host::Unaddressed) {
            self.within(
                &outer,
                &format!("ip addr add 5.0.0.{number}/24 dev wan && ip route add default via 5.0.0.254"),
            )?;
        }
        if has_ipv6(host) {
            self.within(&outer, &format!("ip addr add 2a00::{number}/64 dev wan nodad"))?;
        }
        if host == Host::Firewalled {
            self.within(
                &outer,
                "nft 'table inet wall { chain i { type filter hook input priority 0; ct state established,related accept; \
                 meta l4proto udp drop; }; }'",
            )?;
        }
        for (depth, router) in below.iter().enumerate() {
            let behind = below.get(depth + 1).unwrap_or(&inner).clone();
            let network = format!("192.168.{}", 10 * number + depth);
            let end = if behind == inner { "lan" } else { "wan" };
            self.cable((router, "home"), (&behind, end))?;
            self.within(router, &format!("ip addr add {network}.1/24 dev home"))?;
            if host == Host::PinholeHome {
                self.route_ipv6(router, &behind, number)?;
                continue;
            }
            self.within(
                &behind,
                &format!("ip addr add {network}.2/24 dev {end} && ip route add default via {network}.1"),
            )?;
            self.route(router, host)?;
        }
        Ok(())
    }

    /// Has a namespace be the router of a home that has IPv6 alone.
    fn route_ipv6(&self, router: &str, host: &str, number: usize) -> Result<(), String> {
        self.within(
            router,
            &format!(
                "ip addr add 2a01:{number}::1/64 dev home nodad && ip addr add fe80::1/64 dev home nodad && \
                 echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
            ),
        )?;
        self.within(
            host,
            &format!(
                "ip addr add 2a01:{number}::2/64 dev lan nodad && ip -6 route add default via fe80::1 dev lan"
            ),
        )?;
        self.route(router, Host::PinholeHome)
    }

    /// Has a namespace be a home's router: what comes from outside and answers nothing is dropped.
    fn route(&self, router: &str, host: Host) -> Result<(), String> {
        let masquerade = match host {
            Host::RandomHome => "masquerade random",
            _ => "masquerade",
        };
        let rules = format!(
            "table inet miniupnpd {{ \
               chain miniupnpd {{ }}; chain prerouting_miniupnpd {{ }}; chain postrouting_miniupnpd {{ }}; \
               chain i {{ type filter hook input priority 0; meta l4proto ipv6-icmp accept; \
                 iifname wan ct state established,related accept; iifname wan drop; }}; \
               chain f {{ type filter hook forward priority 0; policy accept; jump miniupnpd; \
                 iifname wan ct state established,related accept; iifname wan ct status dnat accept; iifname wan drop; }}; \
               chain pre {{ type nat hook prerouting priority -100; jump prerouting_miniupnpd; }}; \
               chain post {{ type nat hook postrouting priority 100; jump postrouting_miniupnpd; oifname wan {masquerade}; }}; }}"
        );
        self.within(
            router,
            &format!("echo 1 > /proc/sys/net/ipv4/ip_forward && nft '{rules}'"),
        )
    }

    /// Has a host's router pass ports on, by UPnP, or let them in, by PCP.
    fn serve_ports(&mut self, at: usize, host: Host, scratch: &Path) -> Result<(), String> {
        let router = self.name(&format!("r{at}0"));
        let file = scratch.join("miniupnpd.conf");
        let network = format!("192.168.{}.0/24", 10 * (at + 1));
        let protocols = match host {
            Host::PinholeHome => "enable_natpmp=yes\nenable_upnp=no",
            _ => "enable_natpmp=no\nenable_upnp=yes",
        };
        let text = format!(
            "ext_ifname=wan\next_ifname6=wan\nlistening_ip=home\nport=0\nipv6_disable=no\n{protocols}\n\
             uuid=73a7e4e2-1b2c-4c5d-9e6f-000000000001\nupnp_table_name=miniupnpd\nupnp_nat_table_name=miniupnpd\n\
             allow 1-65535 {network} 1-65535\n"
        );
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        let mut daemon = Command::new("ip");
        daemon
            .args(["netns", "exec", &router, "miniupnpd", "-d", "-f"])
            .arg(&file);
        daemon.arg("-P").arg(scratch.join("miniupnpd.pid"));
        let log = std::fs::File::create(scratch.join("miniupnpd.log")).map_err(|error| error.to_string())?;
        let daemon = daemon
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.daemon = Some((router, daemon.map_err(|error| error.to_string())?));
        std::thread::sleep(std::time::Duration::from_secs(1));
        Ok(())
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        if let Some((_, daemon)) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for space in &self.spaces {
            let _ = run(&format!("ip netns del {space}"));
        }
    }
}

fn run(script: &str) -> Result<(), String> {
    judge(script, Command::new("sh").args(["-c", script]).output())
}

fn output(script: &str) -> String {
    let done = Command::new("sh").args(["-c", script]).output();
    done.map(|done| String::from_utf8_lossy(&done.stdout).into_owned())
        .unwrap_or_default()
}

fn judge(script: &str, done: std::io::Result<std::process::Output>) -> Result<(), String> {
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!(
            "{script}: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        )),
        Err(error) => Err(format!("{script}: {error}")),
    }
}
