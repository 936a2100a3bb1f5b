//! Lies in split runs: about results of passes, and about held sums.

use super::lie::{Lie, Speaker};
use crate::access::signature::Attempt;
use crate::base::id::Digest;
use crate::ledger::Head;
use crate::ledger::keepers::Chain;
use crate::ledger::seal::Finished;
use crate::peer::interface::SpanDone;
use crate::run::parts::Parts;
use crate::wire::{Leg, Message, ViewKey};
use bytes::Bytes;

impl Speaker<'_> {
    /// The messages that a holder of a span sends instead of this one.
    pub(super) fn span(&mut self, message: Message) -> Vec<Message> {
        match (self.episode.lie, &message) {
            (Lie::Tensor, Message::Tensor { .. }) => self.tensor(message),
            (Lie::Tensor, Message::Want { .. }) => vec![self.want(message)],
            // It does not say that it can commit, or says it too early.
            (Lie::Held, Message::Held { .. }) if self.choice(6).chance(0.5) => Vec::new(),
            (Lie::Held, Message::Piece { view, .. }) if self.choice(6).chance(0.5) => {
                let view = *view;
                vec![message, Message::Held { view }]
            }
            (
                Lie::Word,
                Message::Piece {
                    view,
                    leg: Leg::Lane(_),
                    ..
                },
            ) if self.choice(7).chance(0.5) => {
                let word = self.early_word(*view);
                std::iter::once(message).chain(word).collect()
            }
            (
                Lie::Word,
                Message::Piece {
                    leg: Leg::Finished, ..
                },
            ) => vec![self.word(message)],
            _ => vec![message],
        }
    }

    /// Another tensor than it has computed, one of another place, or the same twice.
    fn tensor(&mut self, message: Message) -> Vec<Message> {
        let mut said = message.clone();
        let Message::Tensor {
            chain,
            span,
            back,
            microbatch,
            data,
        } = &mut said
        else {
            return vec![message];
        };
        let codec = self.peer.manifest().split.as_ref().map(|split| split.boundary);
        if self.choice(9).chance(0.5) {
            // Of a round that nobody is in, so it has no effect.
            *chain = Digest([9; 32]);
            *data = codec.map_or(Bytes::new(), |codec| self.shifted(codec, data));
            return vec![said, message];
        }
        match self.rng().below(9) {
            0 => return vec![message.clone(), message],
            1 => *span = span.wrapping_add(1),
            2 => *back ^= true,
            3 => *microbatch = self.rng().below(9) as u32,
            4 => *data = data.slice(..data.len() / 2),
            5 => *data = Bytes::new(),
            _ => *data = codec.map_or(Bytes::new(), |codec| self.shifted(codec, data)),
        }
        match self.rng().below(3) {
            0 => vec![said, message],
            1 => vec![message, said],
            _ => vec![said],
        }
    }

    /// Requests tensors that it has no right to, or not those that it needs.
    fn want(&mut self, mut message: Message) -> Message {
        if let Message::Want {
            span,
            lane,
            back,
            have,
            ..
        } = &mut message
        {
            match self.rng().below(5) {
                0 => *span = self.rng().below(5) as u16,
                1 => *lane = self.rng().below(5) as u16,
                2 => *back ^= true,
                3 => *have = (0..self.rng().below(9) as u32).collect(),
                _ => have.clear(),
            }
        }
        message
    }

    /// False squares of its sums: the same for all, or different for each.
    fn word(&mut self, mut message: Message) -> Message {
        let Message::Piece { view, seal, data, .. } = &mut message else {
            return message;
        };
        let mut rng = match self.choice(8).chance(0.5) {
            true => self.choice(view.round),
            false => super::rng::Rng::new(self.rng().next()),
        };
        let squares = data.chunks(8).flat_map(|_| {
            let square = [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY, 1e300][rng.index(6)];
            square.to_le_bytes()
        });
        *data = squares.take(data.len()).collect::<Vec<u8>>().into();
        if let Some(seal) = seal {
            let (chain, view) = (self.chain(*view), *view);
            let finished = Finished::of(&[Digest::of(data)]);
            **seal = self.keys[0].signed(&Attempt { chain, view }, finished);
        }
        message
    }

    /// Its word, before it holds anything.
    fn early_word(&mut self, view: ViewKey) -> Option<Message> {
        let (here, members) = self.peer.view()?;
        let me = members.iter().position(|member| *member == self.peer.me())?;
        let (manifest, head) = (self.peer.manifest(), self.peer.head());
        let parts = Parts::of(manifest).filter(|_| here == view)?;
        let is_first = |chain: &&Chain| chain.members.first() == Some(&me);
        let firsts = Head::chains(head, parts, members);
        let firsts = firsts.iter().filter(is_first).count();
        let data = Bytes::from(vec![0; manifest.clip.map_or(0, |_| 8 * firsts)]);
        let attempt = Attempt {
            chain: head.chain,
            view,
        };
        let finished = Finished::of(&[Digest::of(&data)]);
        Some(Message::Piece {
            view,
            leg: Leg::Finished,
            chunk: me as u16,
            piece: 0,
            headers: Vec::new(),
            all: None,
            seal: Some(Box::new(self.keys[0].signed(&attempt, finished))),
            data,
        })
    }

    /// Changes a liar's result of a pass.
    pub(super) fn passed(&mut self, done: &mut SpanDone) {
        let add = self.rng().unit() as f32 - 0.5;
        let spoil = |values: &mut Vec<f32>| values.iter_mut().for_each(|value| *value += add);
        match self.rng().below(6) {
            0 => spoil(&mut done.output),
            1 => spoil(&mut done.sum),
            2 => done.loss = [f32::NAN, -1e30, 0.0][self.rng().index(3)],
            3 => done.output.fill(f32::NAN),
            4 => done.sum.clear(),
            _ => done.output.truncate(1),
        }
    }
}
