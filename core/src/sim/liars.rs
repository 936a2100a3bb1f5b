//! The liars of a world: who they are, when they lie, and how their lies reach the others. A liar is a peer like
//! any other, so it is admitted and takes part, but its messages go through a [`Lie`] now and then. `lie` has the
//! content of each lie.
//!
//! Liars are fewer than a third of the members when they begin to lie, and in league: each has the keys of all.
//! They stop when all faults end, and from then on the run must go on as if they had never been.

use super::league::Liar;
use super::lie::{Episode, Lie, Speaker, headers_of, invented_key};
use super::node::Node;
use super::plan::{LEAST_US, LIARS, MOST_PEERS};
use super::rng::Rng;
use super::trace;
use super::twist::Twist;
use super::world::{What, World, tell};
use crate::access::invitation::{Invitation, Role};
use crate::access::signature::{Key, Signed};
use crate::base::id::PeerId;
use crate::base::random::mix;
use crate::ledger::Header;
use crate::peer::interface::SpanDone;
use crate::peer::{Input, Lane, Peer};
use crate::wire::{Leg, Message, ViewKey};
use bytes::Bytes;

/// Messages that a liar remembers.
const MEMORY: usize = 48;
/// Newcomers that are invented at a time. Each needs a link, and links are costly.
pub(super) const INVENTED: u64 = 4;

impl Node {
    pub fn is_liar(&self) -> bool {
        self.liar.is_some()
    }
}

impl World {
    /// The honest peers.
    pub(super) fn honest(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.is_liar())
    }

    pub(super) fn is_liar(&self, peer: PeerId) -> bool {
        self.by_id
            .get(&peer)
            .map_or(self.lies.invented.contains(&peer), |i| self.nodes[*i].is_liar())
    }

    /// Draws which of the first peers lie.
    pub(super) fn draw_liars(&mut self, seed: u64) {
        let Some(liars) = &self.plan.liars else { return };
        let rng = &mut Rng::new(mix(!seed ^ LIARS));
        while self.liars.len() < liars.count {
            // The founder is no guest.
            let first = usize::from(self.plan.has_page);
            self.liars
                .insert(first + rng.index(self.plan.peers.len() - first));
        }
        self.lies.committed_at = 0;
        self.tongue = rng.fork();
    }

    /// A peer starts for the first time.
    pub(super) fn corrupt(&mut self, i: usize) {
        if !self.liars.contains(&i) {
            return;
        }
        tell!(self, "{} is a liar", self.nodes[i].name);
        self.ledger.liars.insert(self.nodes[i].id);
        self.nodes[i].is_guest |= self.plan.has_page;
        self.nodes[i].liar = Some(Box::new(Liar {
            rng: self.tongue.fork(),
            episode: None,
            heard: Vec::new(),
            invented: Vec::new(),
        }));
        self.next_lie(i);
    }

    fn next_lie(&mut self, i: usize) {
        let Some(plan) = &self.plan.liars else { return };
        let Some(liar) = &mut self.nodes[i].liar else {
            return;
        };
        // It repeats its inventions.
        let every = match liar.episode {
            Some(Episode {
                lie: Lie::Visit | Lie::ComeAndGo,
                ..
            }) => plan.every_us,
            Some(_) => plan.longest_us / 6.0,
            None => plan.every_us,
        };
        let at = self.now + liar.rng.wait(every) as u64 + 1;
        if self.healed_at.is_none() {
            self.schedule(at, What::Lie { node: i });
        }
    }

    /// Liars lie once they are fewer than a third of some honest member's attempt, and until all faults end.
    fn may_lie(&mut self) -> bool {
        if self.healed_at.is_some() {
            return false;
        }
        if self.lies.since.is_none() {
            let most = self.honest().map(Node::view_len).max();
            if most.is_none_or(|most| most <= 3 * self.liars.len()) {
                return false;
            }
            tell!(self, "LIES may begin");
            self.lies.since = Some(self.now);
            self.lies.committed_at = self.now;
        }
        true
    }

    /// It is time for a liar to lie.
    pub(super) fn lie(&mut self, i: usize) {
        self.next_lie(i);
        self.come_back(i);
        if !self.nodes[i].is_alive() || self.nodes[i].frozen || !self.may_lie() {
            return;
        }
        let now = self.now;
        let over = |episode: &mut Episode| episode.until <= now;
        let Some(liar) = &mut self.nodes[i].liar else {
            return;
        };
        if liar.episode.take_if(over).is_some() {
            return self.forget_invented(i);
        }
        if liar.episode.is_none() {
            let plan = self.plan.liars.as_ref().expect("there is a liar");
            let rng = &mut liar.rng;
            let lie = rng.pick(&plan.lies).expect("at least one");
            let long = rng.octaves(LEAST_US, plan.longest_us);
            let episode = Episode {
                lie,
                until: now + long as u64,
                victim: self.nodes[0].id,
                share: 1.0,
                invents: false,
                salt: 0,
            };
            self.begin_episode(i, episode);
        }
        self.invent(i);
    }

    fn begin_episode(&mut self, i: usize, mut episode: Episode) {
        let others: Vec<PeerId> = self.honest().map(|n| n.id).collect();
        let liar = self.nodes[i].liar.as_mut().expect("it is one");
        let rng = &mut liar.rng;
        episode.share = [1.0, 1.0, 0.5, 0.1][rng.index(4)];
        episode.invents = rng.chance(0.5) || matches!(episode.lie, Lie::Visit | Lie::ComeAndGo);
        episode.victim = rng.pick(&others).unwrap_or(episode.victim);
        episode.salt = rng.next();
        liar.episode = Some(episode);
        *self.stats.lies.entry(episode.lie).or_default() += 1;
        tell!(
            self,
            "LIE {}: {} until {:.3} s, of {} in {:.1} of all",
            self.nodes[i].name,
            episode.lie,
            episode.until as f64 / 1e6,
            self.name(episode.victim),
            episode.share
        );
    }

    /// The lie that a liar tells now.
    fn episode(&self, i: usize) -> Option<Episode> {
        let episode = self.nodes[i].liar.as_ref()?.episode?;
        (episode.until > self.now && self.healed_at.is_none()).then_some(episode)
    }

    /// Lets a liar speak.
    fn speak<R>(&mut self, i: usize, episode: Episode, say: impl FnOnce(&mut Speaker<'_>) -> R) -> Option<R> {
        let mut liar = self.nodes[i].liar.take()?;
        let own = std::iter::once(self.nodes[i].key.clone());
        let league = self.liars.iter().filter(|j| **j != i);
        let league = league.filter_map(|j| self.nodes.get(*j)).map(|n| n.key.clone());
        let keys: Vec<Key> = own.chain(league).collect();
        let names: Vec<PeerId> = self.nodes.iter().map(|n| n.id).collect();
        let peers = || self.nodes.iter().filter_map(|n| n.peer.as_deref());
        let view = |peer: &Peer| peer.view().map(|(view, _)| view);
        let said = self.nodes[i].peer.as_deref().map(|peer| {
            say(&mut Speaker {
                episode,
                twist: Twist {
                    rng: &mut liar.rng,
                    root: self.manifest.root(),
                    names: &names,
                    chains: peers().map(|peer| peer.head().chain).collect(),
                    views: peers().map(view).collect(),
                },
                peer,
                keys: &keys,
                heard: &liar.heard,
            })
        });
        self.nodes[i].liar = Some(liar);
        said
    }

    /// A peer sends a message; a liar perhaps sends another.
    pub(super) fn say(&mut self, i: usize, to: PeerId, lane: Lane, message: Message) {
        if !self.nodes[i].is_liar() {
            return self.send(i, to, lane, message);
        }
        self.hear(i, &message);
        // It may stand in a lineage of its own making, and tells the truth about that.
        let peer = self.nodes[i].peer.as_deref();
        if peer.is_some_and(|peer| !self.ledger.holds(peer)) {
            self.note_misled(to, &message);
        }
        let said = self
            .episode(i)
            .and_then(|episode| self.speak(i, episode, |speaker| speaker.instead(to, message.clone())));
        match said {
            None => self.send(i, to, lane, message),
            Some(said) => said
                .into_iter()
                .for_each(|said| self.send_lie(i, to, said, Some((lane, &message)))),
        }
    }

    /// The message that a liar's peer meant to send goes out as it is; any other must be decodable.
    fn send_lie(&mut self, i: usize, to: PeerId, said: Message, meant: Option<(Lane, &Message)>) {
        if let Some((lane, _)) = meant.filter(|(_, meant)| **meant == said) {
            return self.send(i, to, lane, said);
        }
        let Ok(said) = Message::decode(said.to_frame()) else {
            return;
        };
        if self.tracing {
            let text = trace::message(self, &said);
            tell!(self, "LIE {} -> {}: {text}", self.nodes[i].name, self.name(to));
        }
        if let Some(sums) = sums(&said)
            && meant.and_then(|(_, meant)| self::sums(meant)) != Some(sums)
        {
            self.lies.spoilt.insert(sums.0);
        }
        self.ledger.is_unkept |= self.lies_of_parts(i, &said, meant.map(|(_, meant)| meant));
        self.ledger.is_unkept |= self.lies_of_spans(i, &said, meant.map(|(_, meant)| meant));
        if let Some(view) = self.lies_of_anew(i, &said, meant.map(|(_, meant)| meant)) {
            self.lies.spoilt.insert(view);
        }
        self.note_misled(to, &said);
        let bulk = matches!(
            said,
            Message::Piece { .. }
                | Message::Block { .. }
                | Message::Digests { .. }
                | Message::Following { .. }
        );
        let lane = meant.map_or(if bulk { Lane::Bulk } else { Lane::Control }, |(lane, _)| lane);
        self.send(i, to, lane, said);
    }

    /// From here on a newcomer's state may differ from all others, because of a liar's data.
    fn note_misled(&mut self, to: PeerId, said: &Message) {
        if let Some(fed) = self.by_id.get(&to).copied()
            && let Message::Block { .. }
            | Message::Following { .. }
            | Message::Committed { .. }
            | Message::Piece { .. } = said
            && !self.nodes[fed].is_member()
        {
            self.nodes[fed].misled = true;
        }
    }

    /// The attempt in which the league lies about the values that it carries on, if it does.
    fn lies_of_anew(&self, i: usize, said: &Message, meant: Option<&Message>) -> Option<ViewKey> {
        let (view, _) = headers_in(said)?;
        self.is_other(i, said, meant, |header| header.anew)
            .then_some(view)
    }

    /// Whether the league lies about parts of the moments, so that the result is its invention.
    fn lies_of_parts(&self, i: usize, said: &Message, meant: Option<&Message>) -> bool {
        let other = || self.is_other(i, said, meant, |header| header.keeps.clone());
        self.plan.manifest.copies.is_some() && (matches!(said, Message::Moments { .. }) || other())
    }

    /// Whether only the receivers know the result of a lie in a split run.
    fn lies_of_spans(&self, i: usize, said: &Message, meant: Option<&Message>) -> bool {
        let of_values = match said {
            // A tensor of another round has no effect.
            Message::Tensor { chain, .. } => {
                let here = self.nodes[i].peer.as_deref().map(|peer| peer.head().chain);
                Some(*chain) == here && meant != Some(said)
            }
            Message::Piece { .. }
            | Message::Moments { .. }
            | Message::Headers { .. }
            | Message::Committed { .. }
            | Message::Following { .. }
            | Message::Relay { .. } => true,
            _ => false,
        };
        self.plan.manifest.split.is_some() && of_values
    }

    /// Changes a liar's result of a pass.
    pub(super) fn say_passed(&mut self, i: usize, done: &mut SpanDone) {
        let episode = self.episode(i).filter(|episode| episode.lie == Lie::Contribution);
        if let Some(episode) = episode {
            self.ledger.is_unkept = true;
            let _ = self.speak(i, episode, |speaker| speaker.passed(done));
        }
    }

    /// Whether some header of the league differs from what its peers mean.
    fn is_other<T: PartialEq>(
        &self,
        i: usize,
        said: &Message,
        meant: Option<&Message>,
        what: impl Fn(&Header) -> T,
    ) -> bool {
        let Some((view, headers)) = headers_in(said) else {
            return false;
        };
        let known = self.nodes[i].peer.as_deref();
        let known = known.map_or(Vec::new(), |peer| headers_of(peer, view));
        let meant = meant.and_then(headers_in).map_or(&[][..], |(_, headers)| headers);
        let is_true = |said: &Signed<Header>| {
            let mut real = known.iter().chain(meant);
            real.any(|real| real.peer == said.peer && what(real) == what(said))
        };
        let mut of_liars = headers.iter().filter(|h| self.ledger.liars.contains(&h.peer));
        of_liars.any(|h| !is_true(h))
    }

    /// A liar remembers what it hears and says.
    pub(super) fn hear(&mut self, i: usize, message: &Message) {
        if let Some(liar) = &mut self.nodes[i].liar {
            if liar.heard.len() < MEMORY {
                liar.heard.push(message.clone());
            } else if liar.rng.chance(0.2) {
                let old = liar.rng.index(MEMORY);
                liar.heard[old] = message.clone();
            }
        }
    }

    /// A liar sends a message without having been asked.
    fn invent(&mut self, i: usize) {
        let Some(episode) = self.episode(i) else { return };
        // A liar that invents is often out before its other statements are examined.
        if !episode.invents {
            return;
        }
        match episode.lie {
            Lie::Invent => return self.invent_newcomers(i),
            Lie::Revoke => return self.take_back(i),
            Lie::Visit => return self.send_visitors(i, episode),
            Lie::ComeAndGo => return self.say_goodbye(i),
            _ => {}
        }
        for j in (0..self.nodes.len()).filter(|j| *j != i) {
            let to = self.nodes[j].id;
            let said = self.speak(i, episode, |speaker| speaker.invent(to));
            for said in said.into_iter().flatten() {
                self.send_lie(i, to, said, None);
            }
        }
    }

    /// The run's key revokes a ticket that nobody has come by, or the liar's own; others may repeat that.
    fn take_back(&mut self, i: usize) {
        if self.has_run_revoked_many() {
            return;
        }
        self.revoked_by_run += 1;
        let fair: Vec<usize> = (0..self.nodes.len())
            .filter(|j| self.nodes[*j].is_member() && !self.nodes[*j].is_liar())
            .collect();
        let (of_run, own) = (Invitation::of_run(self.run_key.clone()), self.admission(i).chain);
        let root = self.manifest.root();
        let rng = &mut self.nodes[i].liar.as_mut().expect("it is one").rng;
        let Some(by) = rng.pick(&fair) else { return };
        let nobody = invented_key(self.scheme, rng.next());
        let unused = of_run.narrow(root, nobody, Role::Member, None, None);
        let chain = match rng.chance(0.1) {
            true => own,
            false => unused.expect("the run's key grants all").chain,
        };
        let revocation = of_run.revoke(root, chain).expect("the run's key is above all");
        self.give(by, Input::Revoke(Box::new(revocation)));
    }

    /// All lies end.
    pub(super) fn end_lies(&mut self) {
        for i in 0..self.nodes.len().min(MOST_PEERS) {
            if self.nodes[i].is_liar() {
                self.forget_invented(i);
            }
        }
    }

    /// Changes a liar's contribution.
    pub(super) fn say_made(&mut self, i: usize, gradient: &mut [f32], made: &mut (u64, f32, u64)) {
        if self.is_idler(i) {
            return self.idle(i, gradient);
        }
        if self
            .episode(i)
            .is_none_or(|episode| episode.lie != Lie::Contribution)
        {
            return;
        }
        let rng = &mut self.nodes[i].liar.as_mut().expect("it is one").rng;
        let (weight, loss, took) = made;
        match rng.below(6) {
            0 => *weight += 1 + rng.below(100),
            1 => *weight = 1,
            2 => *loss = -1e30,
            3 => *took = [0, 1 << 50][rng.index(2)],
            4 => gradient.fill([f32::NAN, f32::INFINITY, 3e38][rng.index(3)]),
            _ => gradient.iter_mut().for_each(|value| *value = -*value),
        }
    }
}

/// The headers in a message, and their attempt.
fn headers_in(message: &Message) -> Option<(ViewKey, &[Signed<Header>])> {
    match message {
        Message::Piece { view, headers, .. } | Message::Headers { view, headers } => Some((*view, headers)),
        Message::Committed { view, record, .. } => Some((*view, &record.headers)),
        _ => None,
    }
}

/// A piece's share of the sums of its attempt, and its place.
fn sums(message: &Message) -> Option<(ViewKey, Leg, u16, u32, &Bytes)> {
    match message {
        Message::Piece {
            view,
            leg,
            chunk,
            piece,
            data,
            ..
        } => Some((*view, *leg, *chunk, *piece, data)),
        _ => None,
    }
}
