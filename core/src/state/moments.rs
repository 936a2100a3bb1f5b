//! The parts of the optimizer's vectors that one peer keeps, stepped by the sums that it holds and verified by
//! their digests.
//!
//! In a split run, a part has one vector more, the last: its weights.

use crate::base::id::Digest;
use crate::collective::Held;
use crate::ledger::stepping::{step_slots, zeros};
use crate::numeric::codec::Codec;
use crate::numeric::optim::{Slot, Step, views};
use crate::run::config::Manifest;
use crate::run::initial::Initial;
use crate::run::parts::{PartSet, Parts};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// One part.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    slots: Vec<Slot>,
    seal: Seal,
}

/// The hashes of a part after its last step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seal {
    /// The digest that others are told. Nobody can make other vectors with it.
    digest: u64,
    /// A CRC-32, to detect memory faults. It takes a tenth of the digest's time and is checked as often.
    check: u32,
}

/// The parts of the optimizer's vectors that a peer keeps, all after the same round.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Shared with clones until one of them changes: writing a checkpoint costs no second copy.
    parts: BTreeMap<u16, Arc<Part>>,
    /// The lineage after the last round that stepped them.
    pub stepped: Digest,
    /// The first weights, if weights are kept here too.
    pub initial: Option<Initial>,
    /// How often a part that had changed by itself was accepted, since nobody else had it.
    taken: u64,
}

impl PartialEq for Moments {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts && self.stepped == other.stepped
    }
}

impl Default for Moments {
    /// No parts.
    fn default() -> Self {
        Self {
            parts: BTreeMap::new(),
            stepped: Digest([0; 32]),
            initial: None,
            taken: 0,
        }
    }
}

/// Vectors for a part: those of the optimizer and, in a split run, the weights.
pub(crate) fn blank(manifest: &Manifest, len: usize) -> Vec<Slot> {
    let mut slots = zeros(manifest, len);
    if manifest.split.is_some() {
        slots.push(Slot::F32(vec![0.0; len]));
    }
    slots
}

/// A part has changed by itself since its last step.
#[derive(Debug)]
pub(crate) struct Damaged;

impl Moments {
    /// The set of parts.
    pub fn set(&self) -> PartSet {
        self.parts.keys().copied().collect()
    }

    /// A part's vectors, from its first element on, if it is kept.
    pub fn slots(&self, part: u16) -> Option<&[Slot]> {
        self.parts.get(&part).map(|part| &part.slots[..])
    }

    /// The digest of all that is kept, if anything is.
    pub fn digest_of_all(&self) -> Option<Digest> {
        let all = self.parts.iter().map(|(part, kept)| (*part, kept.seal.digest));
        (!self.parts.is_empty()).then(|| digest_of_parts(all))
    }

    /// The digest of a part, if it is kept.
    pub fn digest(&self, part: u16) -> Option<u64> {
        self.parts.get(&part).map(|part| part.seal.digest)
    }

    /// The digests of some parts, in order; 0 for one that is not kept.
    pub fn digests(&self, of: &PartSet) -> Vec<u64> {
        of.iter().map(|part| self.digest(part).unwrap_or(0)).collect()
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        let slots = self.parts.values().flat_map(|part| &part.slots);
        slots
            .map(|slot| sections(slot, 0..slot.len()).map(<[u8]>::len).sum::<usize>())
            .sum()
    }

    /// Adds a part.
    pub fn insert(&mut self, part: u16, slots: Vec<Slot>) {
        let seal = seal(&slots);
        self.parts.insert(part, Arc::new(Part { slots, seal }));
    }

    /// Adds these parts, as they are before the first step.
    pub fn begin(&mut self, manifest: &Manifest, parts: &PartSet) {
        let all = Parts::of_len(manifest.layout.len);
        let range = |part| all.range(part).unwrap_or(0..0);
        let ranges: Vec<Range<usize>> = parts.iter().map(range).collect();
        let initial = match (&manifest.split, &self.initial) {
            (Some(_), Some(initial)) if !ranges.is_empty() => initial.values(&ranges),
            _ => Vec::new(),
        };
        let mut initial = initial.into_iter();
        for (part, range) in parts.iter().zip(ranges) {
            let mut slots = blank(manifest, range.len());
            if let Some(values) = initial.next() {
                let weights = slots.last_mut().expect("the weights are one of them");
                *weights = Slot::F32(values);
            }
            self.insert(part, slots);
        }
    }

    /// Drops all parts but these.
    pub fn retain(&mut self, parts: &PartSet) {
        self.parts.retain(|part, _| parts.contains(*part));
    }

    /// Adds those of these parts that another peer's set has and this one lacks.
    pub(crate) fn take_from(&mut self, mut other: Self, parts: &PartSet) {
        other.retain(&parts.without(&self.set()));
        self.parts.append(&mut other.parts);
    }

    /// Drops all parts.
    pub fn clear(&mut self) {
        self.parts.clear();
    }

    /// Verifies that a part has not changed by itself since its last step.
    pub(crate) fn prove(&self, part: u16) -> Result<(), Damaged> {
        let same = |part: &Arc<Part>| check(&part.slots) == part.seal.check;
        self.parts
            .get(&part)
            .is_none_or(same)
            .then_some(())
            .ok_or(Damaged)
    }

    /// Those of some parts that are kept and have changed by themselves since their last step.
    pub(crate) fn damaged(&self, of: &PartSet) -> PartSet {
        of.iter().filter(|part| self.prove(*part).is_err()).collect()
    }

    /// Resets those of some parts that were never trained, since their first values are known. Returns the others.
    pub(crate) fn restore(&mut self, manifest: &Manifest, parts: &PartSet, untrained: &PartSet) -> PartSet {
        let anew = parts.and(untrained);
        self.begin(manifest, &anew);
        parts.without(&anew)
    }

    /// Accepts some parts as they are, even if they have changed by themselves.
    pub(crate) fn take_as_they_are(&mut self, parts: &PartSet) {
        for part in parts.iter() {
            if let Some(kept) = self.parts.get_mut(&part) {
                let kept = Arc::make_mut(kept);
                kept.seal = seal(&kept.slots);
                self.taken += 1;
            }
        }
    }

    /// Marks some parts as changed by themselves, although they were stepped since.
    pub(crate) fn doubt(&mut self, parts: &PartSet) {
        for part in parts.iter() {
            if let Some(kept) = self.parts.get_mut(&part) {
                let kept = Arc::make_mut(kept);
                kept.seal.check = !check(&kept.slots);
            }
        }
    }

    /// Whether any part was accepted in that way.
    #[cfg(feature = "sim")]
    pub(crate) fn has_taken(&self) -> bool {
        self.taken > 0
    }

    /// The parameters that a piece's sum leads to, without changing the moments. `None` if its part is not kept.
    pub(crate) fn try_step(
        &self,
        manifest: &Manifest,
        step: &Step,
        range: Range<usize>,
        params: &[f32],
        sums: &[f32],
    ) -> Option<Vec<f32>> {
        let parts = Parts::of_len(manifest.layout.len);
        let part = parts.part_of(range.start);
        let start = parts.range(part)?.start;
        let here = range.start - start..range.end - start;
        let slots = self.slots(part)?.iter();
        let mut slots: Vec<Slot> = slots.map(|slot| slot.part(here.clone())).collect();
        let mut params = params[range.clone()].to_vec();
        let slots = &mut views(&mut slots, 0..sums.len());
        step_slots(manifest, step, range, &mut params, slots, sums);
        Some(params)
    }

    /// Steps a piece, if its part is kept, by its held sum, from the parameters before the round. A part without
    /// its sum is dropped: it can never catch up. With `proves`, the part is verified first.
    ///
    /// # Errors
    /// If the part has changed by itself.
    pub(crate) fn step_piece(
        &mut self,
        manifest: &Manifest,
        step: &Step,
        (params, piece): (&[f32], Range<usize>),
        (codec, held, proves): (Codec, &Held, bool),
    ) -> Result<(), Damaged> {
        let parts = Parts::of_len(manifest.layout.len);
        let part = parts.part_of(piece.start);
        let whole = parts.range(part).filter(|_| self.parts.contains_key(&part));
        let Some(whole) = whole else {
            return Ok(());
        };
        if proves && whole.start == piece.start {
            self.prove(part)?;
        }
        let Some(data) = held.get(&piece.start) else {
            self.parts.remove(&part);
            return Ok(());
        };
        let kept = Arc::make_mut(self.parts.get_mut(&part).expect("it was just there"));
        let (mut sums, mut params) = (vec![0.0; piece.len()], params[piece.clone()].to_vec());
        codec
            .decode(data, &mut sums)
            .expect("it was checked when it came");
        let is_last = piece.end == whole.end;
        let here = piece.start - whole.start..piece.end - whole.start;
        let slots = &mut views(&mut kept.slots, here);
        step_slots(manifest, step, piece, &mut params, slots, &sums);
        if is_last {
            kept.seal = seal(&kept.slots);
        }
        Ok(())
    }

    /// The weights of some elements, if weights are kept here; zeros for those that are not.
    pub fn weights(&self, manifest: &Manifest, range: Range<usize>) -> Vec<f32> {
        self.weights_of(manifest, &[range])
    }

    /// The weights of several ranges of elements, one after the other; zeros for those that are not kept.
    pub(crate) fn weights_of(&self, manifest: &Manifest, ranges: &[Range<usize>]) -> Vec<f32> {
        let parts = Parts::of_len(manifest.layout.len);
        let mut weights = Vec::with_capacity(ranges.iter().map(Range::len).sum());
        for range in ranges {
            let begin = weights.len();
            for (part, kept) in &self.parts {
                let whole = parts.range(*part).unwrap_or(0..0);
                let here = whole.start.max(range.start)..whole.end.min(range.end);
                if let (true, Some(slot)) = (!here.is_empty(), kept.slots.last()) {
                    weights.resize(begin + here.start - range.start, 0.0);
                    let values = slot.floats(here.start - whole.start..here.end - whole.start);
                    weights.extend_from_slice(values);
                }
            }
            weights.resize(begin + range.len(), 0.0);
        }
        weights
    }

    /// Steps weights and moments of all parts by the held sums of their pieces, in a split run. A part without all
    /// of its sums is dropped: it can never catch up.
    pub(crate) fn step_weights(&mut self, manifest: &Manifest, step: &Step, held: &Held) {
        let parts = Parts::of_len(manifest.layout.len);
        for part in self.set().iter() {
            let whole = parts.range(part).unwrap_or(0..0);
            // The whole part at once: pieces may begin anywhere, but blocks of moments may not.
            let mut sums = vec![0.0; whole.len()];
            let mut done = whole.start;
            while let Some(data) = held.get(&done) {
                let len = data.len() / size_of::<f32>();
                if len == 0 || done + len > whole.end {
                    break;
                }
                let here = done - whole.start..done - whole.start + len;
                Codec::F32
                    .decode(data, &mut sums[here])
                    .expect("it was checked when it came");
                done += len;
            }
            if done == whole.end {
                self.step_part(manifest, step, part, &sums);
            } else {
                self.parts.remove(&part);
            }
        }
    }

    /// Steps weights and moments of a part by the sums of all its elements, in a split run.
    pub(crate) fn step_part(&mut self, manifest: &Manifest, step: &Step, part: u16, sums: &[f32]) {
        let whole = Parts::of_len(manifest.layout.len).range(part).unwrap_or(0..0);
        let kept = Arc::make_mut(self.parts.get_mut(&part).expect("it is kept"));
        let (weights, slots) = kept.slots.split_last_mut().expect("it has weights");
        let weights = weights.floats_mut(0..whole.len());
        let slots = &mut views(slots, 0..sums.len());
        step_slots(manifest, step, whole, weights, slots, sums);
        kept.seal = seal(&kept.slots);
    }

    /// The bytes of a piece of a part, as sent to other peers.
    pub(crate) fn read(&self, part: u16, piece: Range<usize>) -> Option<Vec<u8>> {
        let slots = self.slots(part)?;
        let bytes = slots.iter().flat_map(|slot| sections(slot, piece.clone()));
        Some(bytes.flatten().copied().collect())
    }

    /// Flips one bit of an element, as failing memory would: in its moments or, if its weight is kept here too and
    /// the bit is even, in its weight. Whether a kept part has the element.
    #[cfg(feature = "sim")]
    pub(crate) fn flip(&mut self, manifest: &Manifest, element: usize, bit: u32) -> bool {
        let parts = Parts::of_len(manifest.layout.len);
        let part = parts.part_of(element);
        let Some(kept) = self.parts.get_mut(&part) else {
            return false;
        };
        let at = element - parts.range(part).map_or(0, |range| range.start);
        let slots = &mut Arc::make_mut(kept).slots;
        let is_weight = manifest.split.is_some() && bit.is_multiple_of(2);
        let slot = if is_weight { slots.len() - 1 } else { 0 };
        let value = &mut slots[slot].floats_mut(at..at + 1)[0];
        *value = f32::from_bits(value.to_bits() ^ (1 << bit));
        true
    }

    /// Each part's vectors as bytes, in order, to be saved.
    pub fn sections(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.values().flat_map(|part| all(&part.slots))
    }
}

/// The bytes of some elements of a vector: its floats, then its codes.
fn sections(slot: &Slot, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
    let floats = bytemuck::cast_slice(slot.floats(range.clone()));
    [floats, slot.codes(range)].into_iter()
}

/// Bytes that are hashed and checked one after the other: few enough that the second finds them in the cache.
const AT_ONCE: usize = 64 << 10;

/// The digest of parts, each with its number and its own digest, in order.
pub fn digest_of_parts(parts: impl IntoIterator<Item = (u16, u64)>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for (part, digest) in parts {
        hasher.update(&part.to_le_bytes()).update(&digest.to_le_bytes());
    }
    Digest(*hasher.finalize().as_bytes())
}

/// The digest is the first bits of the hash of a part's vectors. That is enough against chance, and nobody gains
/// from a collision.
fn seal(slots: &[Slot]) -> Seal {
    let (mut hasher, mut crc) = (blake3::Hasher::new(), crc32fast::Hasher::new());
    for some in all(slots).flat_map(|section| section.chunks(AT_ONCE)) {
        hasher.update(some);
        crc.update(some);
    }
    let hash = hasher.finalize();
    let (first, _) = hash.as_bytes().as_chunks::<8>();
    Seal {
        digest: u64::from_le_bytes(first[0]),
        check: crc.finalize(),
    }
}

/// The seal's check against memory faults.
fn check(slots: &[Slot]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    all(slots).for_each(|section| crc.update(section));
    crc.finalize()
}

/// All bytes of a part's vectors.
fn all(slots: &[Slot]) -> impl Iterator<Item = &[u8]> {
    slots.iter().flat_map(|slot| sections(slot, 0..slot.len()))
}

/// Writes the bytes of a piece from another peer into a part's vectors. False, and unchanged, if the length is
/// wrong.
pub(crate) fn write(slots: &mut [Slot], piece: Range<usize>, mut bytes: &[u8]) -> bool {
    let len = |slot: &Slot| sections(slot, piece.clone()).map(<[u8]>::len).sum::<usize>();
    if slots.iter().map(len).sum::<usize>() != bytes.len() {
        return false;
    }
    for slot in slots {
        let (floats, codes) = slot.parts_mut(piece.clone());
        for section in [bytemuck::cast_slice_mut(floats), codes] {
            let (here, rest) = bytes.split_at(section.len());
            section.copy_from_slice(here);
            bytes = rest;
        }
    }
    true
}

/// Loading saved parts.
impl Moments {
    /// Loads saved parts; `read` fills one section after the other.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub fn load<E>(
        manifest: &Manifest,
        (parts, stepped): (&PartSet, Digest),
        mut read: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let all = Parts::of_len(manifest.layout.len);
        let mut loaded = Self {
            stepped,
            ..Self::default()
        };
        for part in parts.iter() {
            let len = all.range(part).map_or(0, |range| range.len());
            let mut slots = blank(manifest, len);
            for slot in &mut slots {
                let (floats, codes) = slot.parts_mut(0..len);
                read(bytemuck::cast_slice_mut(floats))?;
                read(codes)?;
            }
            loaded.insert(part, slots);
        }
        Ok(loaded)
    }
}
