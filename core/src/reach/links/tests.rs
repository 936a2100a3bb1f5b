//! Tests of dialling, introductions and relays.

use super::*;
use crate::run::config::{Layout, Manifest};

fn manifest() -> Manifest {
    Manifest::new(Layout::flat(1))
}

#[test]
fn what_others_tell_of_peers_takes_the_place_of_nothing_that_is_known() {
    let (me, known) = (PeerId([1; 32]), PeerId([2; 32]));
    let settings = Settings::stand_in(me, Contact::default(), &manifest());
    let mut links = Links::new(&settings, RunId([0; 32]));
    let [here, nowhere] = ["here", "nowhere"].map(|at| Contact(vec![at.into()]));
    links.want(known, &here, Time(0));
    links.hear_of(known, &nowhere, Time(0));
    (3..250).for_each(|name| links.hear_of(PeerId([name; 32]), &nowhere, Time(0)));
    assert_eq!(links.peers.len(), ACQUAINTANCES);
    assert_eq!(links.peers[&known].contact, here);
    // A peer met directly still finds room.
    let met = PeerId([251; 32]);
    links.want(met, &here, Time(0));
    assert!(links.peers.contains_key(&met) && !links.peers[&met].up);
}

#[test]
fn a_name_is_no_address() {
    let (me, tab) = (PeerId([1; 32]), PeerId([2; 32]));
    let settings = Settings::stand_in(me, Contact::default(), &manifest());
    let mut links = Links::new(&settings, RunId([0; 32]));
    let name = format!("{}Anna", Contact::NAME);
    links.up(tab, Contact(vec![name.clone()]), Duration::ZERO, Time(0));
    assert_eq!(links.peers[&tab].contact, Contact::default());
    let both = Contact(vec![name, "here".into()]);
    links.want(tab, &both, Time(0));
    assert_eq!(links.peers[&tab].contact, both);
}

#[test]
fn hearsay_that_led_nowhere_gives_way_to_other_hearsay() {
    let (me, ann) = (PeerId([1; 32]), PeerId([2; 32]));
    let settings = Settings::stand_in(me, Contact::default(), &manifest());
    let mut links = Links::new(&settings, RunId([0; 32]));
    let [wrong, right, other] = ["wrong", "right", "other"].map(|at| Contact(vec![at.into()]));
    let first = |links: &Links| links.peers[&ann].contact.0[0].clone();
    links.hear_of(ann, &wrong, Time(0));
    links.hear_of(ann, &right, Time(0));
    assert_eq!(first(&links), "wrong", "nobody has tried it yet");
    links.failed(ann, Time(0));
    links.hear_of(ann, &right, Time(0));
    assert_eq!(first(&links), "right");
    // All are tried in turn, however often a liar repeats itself.
    links.hear_of(ann, &wrong, Time(0));
    links.failed(ann, Time(0));
    assert_eq!(first(&links), "right");
    links.up(ann, right.clone(), Duration::ZERO, Time(0));
    links.down(ann, Time(0));
    links.failed(ann, Time(0));
    links.hear_of(ann, &other, Time(0));
    assert_eq!(links.peers[&ann].contact, right, "it was there");
    for name in 0..20 {
        links.hear_of(PeerId([3; 32]), &Contact(vec![name.to_string()]), Time(0));
        links.failed(PeerId([3; 32]), Time(0));
    }
    assert!(links.peers[&PeerId([3; 32])].contact.is_bounded());
}

#[test]
fn relays_that_are_gone_leave_nothing_behind() {
    let (mut ann, mut out) = member(ANN, &[]);
    ann.want(BEN, &Contact::default(), Time(0));
    let before = ann.bytes();
    // None has a link to Ben, though each has just said so.
    for name in 5..250 {
        let (relay, nowhere) = (PeerId([name; 32]), Contact::default());
        ann.up(relay, nowhere.clone(), Duration::ZERO, Time(0));
        ann.introduced(&mut out, relay, (BEN, nowhere.clone()), Duration::ZERO);
        ann.send(&mut out, BEN, Lane::Control, Message::Followed { round: 1 });
        let returned = out.drain(..).find_map(|output| match output {
            LinkOutput::Send {
                message: Message::Relay { envelope, frame },
                ..
            } => Some((envelope, frame)),
            _ => None,
        });
        let (envelope, frame) = returned.expect("the only way");
        assert!(ann.on_unreachable(&mut out, relay, envelope, frame));
        ann.down(relay, Time(0));
        ann.introduced(&mut out, relay, (BEN, nowhere), Duration::ZERO);
        ann.drop(relay);
    }
    assert_eq!(ann.bytes(), before);
}

#[test]
fn strangers_push_no_member_out_of_memory() {
    let (me, member) = (PeerId([1; 32]), PeerId([2; 32]));
    let settings = Settings::stand_in(me, Contact::default(), &manifest());
    let mut links = Links::new(&settings, RunId([0; 32]));
    let nowhere = Contact::default();
    links.bearers = vec![member];
    links.want(member, &nowhere, Time(0));
    for name in (3..250).map(|name| PeerId([name; 32])) {
        links.up(name, nowhere.clone(), Duration::ZERO, Time(0));
        links.down(name, Time(0));
    }
    assert!(links.peers.contains_key(&member));
    assert_eq!(links.peers.len(), ACQUAINTANCES);
}

/// How often a peer is dialled within a minute, if each link lasts this long and dials take a millisecond.
fn dials(lasts_ms: u64) -> usize {
    let (ann, ben) = (PeerId([1; 32]), PeerId([2; 32]));
    let mut links = Links::new(
        &Settings::stand_in(ann, Contact::default(), &manifest()),
        RunId([0; 32]),
    );
    let contact = Contact(vec!["somewhere".into()]);
    links.want(ben, &contact, Time(0));
    let (mut out, mut dials, mut now) = (VecDeque::<LinkOutput>::new(), 0, Time(0));
    while now < Time(60_000_000) {
        links.on_time(&mut out, now);
        if out.pop_front().is_some() {
            dials += 1;
            now = now + Duration::from_millis(1);
            links.up(ben, contact.clone(), Duration::ZERO, now);
            now = now + Duration::from_millis(lasts_ms);
            links.down(ben, now);
        }
        now = links.wake_at().unwrap_or(now).max(now);
    }
    dials
}

#[test]
fn whoever_hangs_up_at_once_is_dialled_ever_more_seldom() {
    assert!((5..12).contains(&dials(1)), "{}", dials(1));
    assert!(dials(5_000) >= 11, "{}", dials(5_000));
}

const ANN: PeerId = PeerId([1; 32]);
const BEN: PeerId = PeerId([2; 32]);
const CAT: PeerId = PeerId([3; 32]);
const DAN: PeerId = PeerId([4; 32]);

fn contact(at: &str) -> Contact {
    Contact(vec![at.into()])
}

/// A member with links to some others.
fn member(me: PeerId, linked: &[(PeerId, u64)]) -> (Links, VecDeque<LinkOutput>) {
    let settings = Settings::stand_in(me, Contact::default(), &manifest());
    let mut links = Links::new(&settings, RunId([0; 32]));
    links.bearers = vec![ANN, BEN, CAT, DAN];
    for (peer, rtt_ms) in linked {
        links.up(*peer, contact("there"), Duration::from_millis(*rtt_ms), Time(0));
    }
    (links, VecDeque::new())
}

/// A member's outputs, in a few words.
fn said(out: &mut VecDeque<LinkOutput>) -> Vec<String> {
    let name = |peer: PeerId| ["Ann", "Ben", "Cat", "Dan"][usize::from(peer.0[0]) - 1];
    let word = |output| match output {
        LinkOutput::Dial { peer, contact } => format!("dial {} at {}", name(peer), contact.0.join(" ")),
        LinkOutput::Send { to, lane, message } => match message {
            Message::Introduce { to: whom } => {
                format!("{lane:?} to {}: introduce {}", name(to), name(whom))
            }
            Message::Introduced {
                peer,
                contact,
                rtt_us,
            } => format!(
                "{lane:?} to {}: dial {} at {}, {rtt_us} us away",
                name(to),
                name(peer),
                contact.0.join(" ")
            ),
            Message::Relay { .. } => format!("{lane:?} to {}: pass it on", name(to)),
            other => format!("{lane:?} to {}: {other:?}", name(to)),
        },
    };
    out.drain(..).map(word).collect()
}

#[test]
fn a_dial_in_vain_is_repeated_when_somebody_has_introduced_the_two() {
    let (mut ann, mut out) = member(ANN, &[(CAT, 10), (DAN, 20)]);
    ann.want(BEN, &contact("home"), Time(0));
    ann.on_time(&mut out, Time(0));
    assert_eq!(said(&mut out), ["dial Ben at home"], "at first without a word");
    ann.failed(BEN, Time(0));
    let due = ann.wake_at().unwrap();
    ann.on_time(&mut out, due);
    assert_eq!(
        said(&mut out),
        ["Control to Cat: introduce Ben", "Control to Dan: introduce Ben"]
    );
    // Cat has a link to both.
    let (mut cat, mut cats) = member(CAT, &[(ANN, 10), (BEN, 30)]);
    cat.introduce(&mut cats, ANN, BEN);
    cat.introduce(&mut cats, ANN, DAN);
    assert_eq!(
        said(&mut cats),
        [
            "Control to Ann: dial Ben at there, 30000 us away",
            "Control to Ben: dial Ann at there, 10000 us away",
        ],
        "and none to Dan"
    );
    ann.now = due;
    let told = |ann: &mut Links, out: &mut VecDeque<LinkOutput>, rtt_ms| {
        ann.introduced(out, CAT, (BEN, contact("there")), Duration::from_millis(rtt_ms));
    };
    told(&mut ann, &mut out, 30);
    assert_eq!(said(&mut out), ["dial Ben at there home"]);
    told(&mut ann, &mut out, 30);
    assert!(said(&mut out).is_empty(), "it is being dialled");
    ann.failed(BEN, due);
    told(&mut ann, &mut out, 30);
    assert!(said(&mut out).is_empty(), "again and again is not taken for news");
}

#[test]
fn who_hears_of_no_introduction_dials_without() {
    let (mut ann, mut out) = member(ANN, &[(CAT, 10)]);
    ann.want(BEN, &contact("home"), Time(0));
    ann.on_time(&mut out, Time(0));
    ann.failed(BEN, Time(0));
    let asked = ann.wake_at().unwrap();
    ann.on_time(&mut out, asked);
    out.clear();
    // Late, as timers are.
    ann.on_time(&mut out, asked + INTRODUCTION + Duration::from_millis(7));
    assert_eq!(said(&mut out), ["dial Ben at home"]);
}

#[test]
fn who_is_no_member_is_not_dialled_at_anybodys_word() {
    let (mut ann, mut out) = member(ANN, &[(CAT, 10)]);
    ann.bearers = vec![ANN, CAT];
    ann.want(BEN, &Contact::default(), Time(0));
    ann.introduced(&mut out, CAT, (BEN, contact("a victim")), Duration::ZERO);
    assert!(said(&mut out).is_empty());
}

#[test]
fn frames_take_the_nearest_way_in_their_lane_until_there_is_a_link() {
    let (mut ann, mut out) = member(ANN, &[(CAT, 10), (DAN, 40)]);
    let say = |ann: &mut Links, out: &mut VecDeque<LinkOutput>, lane| {
        let message = Message::Followed { round: 1 };
        assert!(ann.send(out, BEN, lane, message));
        said(out)
    };
    ann.want(BEN, &Contact::default(), Time(0));
    assert_eq!(say(&mut ann, &mut out, Lane::Bulk), ["Bulk to Cat: pass it on"]);
    ann.introduced(
        &mut out,
        CAT,
        (BEN, Contact::default()),
        Duration::from_millis(90),
    );
    ann.introduced(
        &mut out,
        DAN,
        (BEN, Contact::default()),
        Duration::from_millis(20),
    );
    assert_eq!(
        say(&mut ann, &mut out, Lane::Control),
        ["Control to Dan: pass it on"]
    );
    // Dan passes it on ahead of pieces.
    let envelope = ann.relayed.seal(BEN, Lane::Control, b"frame");
    let (mut dan, mut dans) = member(DAN, &[(ANN, 40), (BEN, 20)]);
    dan.relay(&mut dans, envelope, Bytes::from_static(b"frame"));
    assert_eq!(said(&mut dans), ["Control to Ben: pass it on"]);
    ann.up(BEN, Contact::default(), Duration::ZERO, Time(1));
    assert_eq!(
        say(&mut ann, &mut out, Lane::Bulk),
        ["Bulk to Ben: Followed { round: 1 }"]
    );
}

#[test]
fn who_is_being_dialled_is_not_due_though_an_older_link_has_gone() {
    let (mut ann, mut out) = member(ANN, &[(BEN, 10)]);
    ann.drop(BEN);
    ann.want(BEN, &contact("home"), Time(0));
    ann.on_time(&mut out, Time(0));
    assert_eq!(said(&mut out), ["dial Ben at home"]);
    ann.down(BEN, Time(0));
    assert_eq!(
        ann.wake_at(),
        None,
        "it would be woken for nothing, at once, again and again"
    );
    ann.failed(BEN, Time(0));
    assert!(ann.wake_at().is_some());
}
