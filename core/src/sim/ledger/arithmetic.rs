//! The reference arithmetic of a round: its sums, and a step by them.

use super::{Errors, Ledger};
use crate::base::id::{Digest, PeerId};
use crate::base::planted::{self, Bug};
use crate::collective::{Cut, reference};
use crate::ledger::{Head, Header, Record};
use crate::numeric::optim::{Moments, clip_scale};
use crate::run::config::Manifest;
use crate::sim::means::{follow_means, square};
use crate::sim::{kept, steps};
use crate::state::State;
use crate::state::parameters::farthest;
use std::collections::BTreeMap;

impl Ledger {
    /// The round's sums by definition, `None` without samples; and the rounding errors. A member's errors are added
    /// to its next contribution. They are lost if it is not a member any more, or declares a reset.
    pub(super) fn reduce(
        &self,
        before: Digest,
        record: &Record,
    ) -> Result<(Option<Vec<f32>>, Errors), String> {
        let m = &self.manifest;
        let goes_on = |peer: &PeerId| record.headers.iter().any(|h| h.peer == *peer && !h.anew);
        let errors = self.points[&before].errors.clone().map(|mut errors| {
            errors.retain(|peer, _| goes_on(peer));
            errors
        });
        if record.weight() == 0 {
            return Ok((None, errors));
        }
        let errors = errors.unwrap_or_default();
        let mut values: Vec<Vec<f32>> = Vec::new();
        for header in record.headers.iter().filter(|_| m.split.is_none()) {
            let made = self.made(before, record.round, header);
            let made = made.and_then(|made| made.iter().find(|made| made.is_of(header)));
            let mut own = match made {
                _ if header.weight == 0 => vec![0.0; m.layout.len],
                Some(made) => made.gradient.clone(),
                None => return Err("the record counts a contribution that no device made".into()),
            };
            for (value, error) in own.iter_mut().zip(errors.get(&header.peer).into_iter().flatten()) {
                *value += error;
            }
            values.push(own);
        }
        if m.split.is_some() {
            let point = &self.points[&before];
            let held = point.states.first().ok_or("nobody knows what it goes on from")?;
            return Ok((
                Some(steps::sums(&point.head, m, &held.state.params)),
                errors_of_none(),
            ));
        }
        let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
        if m.copies.is_some() {
            let (sums, errors) = kept::sums(&self.points[&before].head, record, m, &values);
            return Ok((Some(sums), kept::by_author(record, errors, m.feedback())));
        }
        let head = &self.points[&before].head;
        let (sums, errors) = reference::sums(head.pace.topology, &cut(m, head, record), m.codec, &values);
        let authors = record.headers.iter().map(|h| h.peer);
        let errors = authors.zip(errors).filter(|_| m.feedback()).collect();
        Ok((Some(sums), Some(errors)))
    }
}

/// A lossless codec has no errors.
pub(super) fn errors_of_none() -> Errors {
    Some(BTreeMap::new())
}

/// The cut of the vector in a round that trains.
fn cut(manifest: &Manifest, head: &Head, record: &Record) -> Cut {
    let is_guest = |header: &Header| head.members.iter().any(|m| m.peer == header.peer && !m.is_full());
    let places = record.headers.iter().enumerate();
    let guests = places
        .filter(|(_, header)| is_guest(header))
        .map(|(place, _)| place);
    Cut {
        members: record.headers.len(),
        guests: guests.filter(|_| !planted::here(Bug::GuestsOwn)).collect(),
        len: manifest.layout.len,
        piece: manifest.piece.get() as usize,
        grain: match manifest.moments {
            Moments::F32 => 1,
            Moments::EightBit => 256,
        },
        kept: None,
    }
}

/// Applies a round's sums in one piece.
pub(super) fn step(state: &mut State, manifest: &Manifest, head: &Head, record: &Record, sums: &[f32]) {
    let mut scale = 1.0 / record.weight() as f32;
    if let Some(clip) = manifest.clip {
        let max = match &manifest.local {
            None => clip,
            Some(_) => farthest(manifest, head, clip),
        };
        let cut = cut(manifest, head, record);
        let mut squared = 0.0f64;
        for owner in (0..cut.members).filter(|member| !cut.guests.contains(member)) {
            let chunk = reference::chunk(&cut, owner);
            for start in chunk.clone().step_by(cut.piece) {
                squared += square(manifest, start..chunk.end.min(start + cut.piece), sums);
            }
        }
        scale *= clip_scale(squared.sqrt() * f64::from(scale), max);
    }
    let before = state.clone();
    let (optimizer, lr) = manifest.shared_optimizer();
    let lr = match manifest.local {
        Some(_) => lr,
        None => manifest.schedule.rate(lr, head.steps + 1),
    };
    let step = optimizer.step(lr, head.steps + 1, scale);
    state.apply(manifest, &step, 0..sums.len(), sums);
    follow_means(state, &before, manifest, record, sums);
}
