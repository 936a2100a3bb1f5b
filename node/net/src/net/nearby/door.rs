//! Admission by code: limits wrong guesses, and issues a ticket for a right one.
//!
//! After [`GUESSES`] wrong codes the member takes a new code and accepts none for a minute. After as many again it
//! pauses for two minutes, then four, and so on. So an attacker who guesses for a year can try about a hundred of a
//! million codes, from any number of addresses. An attacker who only wants to disturb makes codes useless, but tickets
//! still work. A code also admits at most [`ENTRIES`] peers, since many people will have seen it by then.
//!
//! It knows no sockets; time is an argument.

use super::code::Code;
use crate::net::link::Refusal;
use crate::net::ticket::Ticket;
use annulus_core::invitation::{Invitation, Role, Root};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Wrong codes after which the code changes, with a pause. Some people mistype more than once.
pub const GUESSES: u32 = 5;

/// The first pause. Each one is twice as long as the one before.
pub const PAUSE: Duration = Duration::from_secs(60);

/// Peers that one code admits. A guess: more than anybody types it for.
pub const ENTRIES: u32 = 32;

/// How long the issued ticket is valid. A peer that is in stays, and can come back within this time.
pub const LASTS: Duration = Duration::from_secs(28 * 24 * 3600);

/// What happened at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A peer was admitted.
    Entered(IpAddr),
    /// A peer had a wrong code; after this many more the code changes.
    Wrong(IpAddr, u32),
    /// There were too many wrong codes: the code changes, and none is accepted for this long.
    Closed(IpAddr, Duration),
    /// The code has admitted as many as it may: it changes.
    UsedUp,
}

/// Admits peers that know the code.
pub struct Door {
    right: Invitation,
    root: Root,
    role: Role,
    state: Mutex<State>,
    news: UnboundedSender<News>,
}

struct State {
    code: Code,
    /// How many codes there have been.
    number: u64,
    wrong: u32,
    entered: u32,
    /// How long the next pause is.
    pause: Duration,
    closed_until: Option<Instant>,
}

/// A code that a peer is about to try.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    /// The code.
    pub code: Code,
    number: u64,
}

impl Door {
    /// A door that grants a role to each admitted peer, out of an own right; and its news. None if the right does not
    /// allow to grant this role, or is limited to a number of peers.
    pub fn new(right: Invitation, root: Root, role: Role) -> Option<(Self, UnboundedReceiver<News>)> {
        let unlimited = right.chain.0.iter().all(|grant| grant.uses.is_none());
        if !unlimited || Ticket::made_from(&right, root, role, None, Some(1)).is_err() {
            return None;
        }
        let (news, heard) = unbounded_channel();
        let state = Mutex::new(State {
            code: Code::generate(),
            number: 0,
            wrong: 0,
            entered: 0,
            pause: PAUSE,
            closed_until: None,
        });
        let door = Self {
            right,
            root,
            role,
            state,
            news,
        };
        Some((door, heard))
    }

    /// The code that admits peers now, or after a pause.
    pub fn code(&self) -> Code {
        self.state().code
    }

    /// The role of admitted peers.
    pub fn role(&self) -> Role {
        self.role
    }

    /// A peer wants to try the code.
    ///
    /// # Errors
    ///
    /// During a pause.
    pub fn approach(&self, now: Instant) -> Result<Try, Refusal> {
        let state = self.state();
        match state.is_closed(now) {
            true => Err(Refusal::NoCode),
            false => Ok(Try {
                code: state.code,
                number: state.number,
            }),
        }
    }

    /// A peer has tried, and its code was right or wrong. A try that never gets here tells its author nothing, so it
    /// does not count.
    ///
    /// # Errors
    ///
    /// If it was wrong, or the code has changed meanwhile. So no code is tried more often than it may be, however many
    /// try at once.
    pub fn judge(&self, tried: Try, right: bool, from: IpAddr, now: Instant) -> Result<(), Refusal> {
        let mut state = self.state();
        if state.is_closed(now) || tried.number != state.number {
            return Err(Refusal::NoCode);
        }
        if right {
            state.entered += 1;
            self.tell(News::Entered(from));
            if state.entered == ENTRIES {
                state.renew();
                self.tell(News::UsedUp);
            }
            return Ok(());
        }
        state.wrong += 1;
        if state.wrong < GUESSES {
            self.tell(News::Wrong(from, GUESSES - state.wrong));
        } else {
            let pause = state.pause;
            state.renew();
            state.pause = pause.saturating_mul(2);
            state.closed_until = now.checked_add(pause);
            self.tell(News::Closed(from, pause));
        }
        Err(Refusal::WrongCode)
    }

    /// The ticket for an admitted peer: for one peer, valid for [`LASTS`] or as long as the own right is.
    pub fn ticket(&self, addrs: Vec<SocketAddr>, now_s: u64) -> Option<Ticket> {
        let end = now_s.saturating_add(LASTS.as_secs());
        let until_s = self.right.chain.until_s().map_or(end, |until_s| until_s.min(end));
        let made = Ticket::made_from(&self.right, self.root, self.role, Some(until_s), Some(1)).ok()?;
        Some(Ticket { addrs, ..made })
    }

    fn tell(&self, news: News) {
        // If nobody receives it, this peer is about to end.
        let _ = self.news.send(news);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics at the door")
    }
}

impl State {
    fn is_closed(&self, now: Instant) -> bool {
        self.closed_until.is_some_and(|until| now < until)
    }

    /// Another code.
    fn renew(&mut self) {
        self.code = self.code.another();
        self.number += 1;
        (self.wrong, self.entered) = (0, 0);
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({:?}, {})", self.code(), self.role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ticket::Secret;
    use annulus_core::RunId;
    use annulus_core::signature::Scheme;

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

    fn root() -> Root {
        let key = Secret([2; 32]).key().peer();
        Root {
            run: RunId([1; 32]),
            key,
        }
    }

    fn founder() -> Invitation {
        Invitation::of_run(Secret([2; 32]).key())
    }

    fn door() -> (Door, UnboundedReceiver<News>) {
        Door::new(founder(), root(), Role::Contribute).unwrap()
    }

    fn guess(door: &Door, right: bool, now: Instant) -> Result<(), Refusal> {
        door.judge(door.approach(now)?, right, FROM, now)
    }

    #[test]
    fn after_a_few_wrong_codes_there_is_another_and_a_pause_that_doubles() {
        let (door, mut news) = door();
        let (mut now, mut pause) = (Instant::now(), PAUSE);
        for _ in 0..4 {
            let code = door.code();
            for left in (1..GUESSES).rev() {
                assert_eq!(guess(&door, false, now), Err(Refusal::WrongCode));
                assert_eq!(news.try_recv(), Ok(News::Wrong(FROM, left)));
                // A right code in between gives others no additional guesses.
                assert_eq!(guess(&door, true, now), Ok(()));
                assert_eq!(news.try_recv(), Ok(News::Entered(FROM)));
            }
            assert_eq!(guess(&door, false, now), Err(Refusal::WrongCode));
            assert_eq!(news.try_recv(), Ok(News::Closed(FROM, pause)));
            // They are equal once in a million.
            assert_eq!(door.code().tag(), code.tag());
            assert_eq!(guess(&door, true, now), Err(Refusal::NoCode));
            let shortly_before = now + pause - Duration::from_millis(1);
            assert_eq!(guess(&door, true, shortly_before), Err(Refusal::NoCode));
            now += pause;
            pause *= 2;
        }
        assert_eq!(guess(&door, true, now), Ok(()));
        // A year of nothing but guesses.
        let within = |n: &u32| ((1 << n) - 1) * PAUSE.as_secs() < 366 * 24 * 3600;
        let tried = (0u32..).take_while(within).count() as u32 * GUESSES;
        assert_eq!(tried, 100);
    }

    #[test]
    fn many_who_try_at_once_try_no_more_than_one_after_the_other() {
        let (door, mut news) = door();
        let now = Instant::now();
        let tries: Vec<Try> = (0..100).map(|_| door.approach(now).unwrap()).collect();
        let answers = tries.iter().map(|tried| door.judge(*tried, false, FROM, now));
        let wrong = answers
            .filter(|answer| *answer == Err(Refusal::WrongCode))
            .count();
        assert_eq!(wrong as u32, GUESSES);
        // A try that began before the pause is refused afterwards, since the code has changed.
        assert_eq!(
            door.judge(tries[0], true, FROM, now + PAUSE),
            Err(Refusal::NoCode)
        );
        let told = std::iter::from_fn(|| news.try_recv().ok()).count();
        assert_eq!(told as u32, GUESSES);
    }

    #[test]
    fn a_code_lets_in_so_many() {
        let (door, mut news) = door();
        let now = Instant::now();
        let late = door.approach(now).unwrap();
        for _ in 0..ENTRIES {
            assert_eq!(guess(&door, true, now), Ok(()));
        }
        assert_eq!(door.judge(late, true, FROM, now), Err(Refusal::NoCode));
        assert_eq!(guess(&door, true, now), Ok(()), "there is another, at once");
        let told: Vec<News> = std::iter::from_fn(|| news.try_recv().ok()).collect();
        assert_eq!(told.iter().filter(|news| **news == News::UsedUp).count(), 1);
    }

    #[test]
    fn what_a_code_brings_is_for_one_and_has_an_end() {
        let (door, _news) = door();
        let addrs = vec!["192.0.2.1:1".parse().unwrap()];
        let ticket = door.ticket(addrs.clone(), 1000).unwrap();
        assert_eq!(ticket.to_string().parse(), Ok(ticket.clone()));
        assert!(
            ticket
                .right()
                .admit(root().key, root().run)
                .is_of(root().key, root(), Scheme::Ed25519)
        );
        let grant = &ticket.chain.0[0];
        assert_eq!(
            (grant.role, grant.uses, &ticket.addrs),
            (Role::Contribute, Some(1), &addrs)
        );
        assert_eq!(grant.until_s, Some(1000 + LASTS.as_secs()));
        // A right that expires issues no ticket that outlasts it.
        let guest = Ticket::made_from(&founder(), root(), Role::Member, Some(2000), None).unwrap();
        let (door, _news) = Door::new(guest.right(), root(), Role::Member).unwrap();
        let ticket = door.ticket(addrs, 1000).unwrap();
        assert_eq!(
            (ticket.chain.role(), ticket.chain.until_s()),
            (Role::Member, Some(2000))
        );
    }

    #[test]
    fn only_who_may_hand_on_to_anybody_has_a_door() {
        let made = |role, uses| {
            Ticket::made_from(&founder(), root(), role, None, uses)
                .unwrap()
                .right()
        };
        let opens = |right: Invitation| Door::new(right, root(), Role::Contribute).is_some();
        assert!(opens(founder()) && opens(made(Role::Member, None)));
        assert!(!opens(made(Role::Contribute, None)) && !opens(made(Role::Watch, None)));
        // The one peer that this admits is the owner itself.
        assert!(!opens(made(Role::Member, Some(1))));
        let mut right = made(Role::Member, None);
        for _ in 1..annulus_core::invitation::MAX_CHAIN {
            assert!(opens(right.clone()));
            right = Ticket::made_from(&right, root(), Role::Member, None, None)
                .unwrap()
                .right();
        }
        assert!(!opens(right));
    }

    #[test]
    fn the_code_is_in_no_trace() {
        let (door, _news) = door();
        let (shown, code) = (
            format!("{door:?} {:?}", door.approach(Instant::now())),
            door.code().to_string(),
        );
        assert!(
            !shown.contains(&code[3..]) && !shown.contains(&code[3..6]),
            "{shown}"
        );
    }
}
