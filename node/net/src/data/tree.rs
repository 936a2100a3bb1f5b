//! Divides a file into blocks that can be checked one by one. BLAKE3 is a tree whose nodes above the blocks prove each
//! block and add up to the file's hash.
//!
//! Aumasson et al., BLAKE3 (2020), section 2.1. It knows no files and no peers.

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{Hash, Hasher};
use std::io::{self, Read};
use std::ops::Range;

/// Bytes of a block except the last: a power of two, as the tree needs.
pub const BLOCK: usize = 256 << 10;

/// Bytes of a piece, the unit in which blocks are asked for and stored. Longer ones would delay the change to another
/// peer, shorter ones make many files.
pub const PIECE: u64 = 4 * BLOCK as u64;

/// Bytes that prove one block.
pub const NODE: usize = 32;

/// The proofs of a file's blocks: one node of the tree for each, in order; none if there is only one block, which the
/// root proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    len: u64,
    root: [u8; 32],
    nodes: Vec<ChainingValue>,
}

impl Blocks {
    /// Reads a file to its end.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn of(mut file: impl Read) -> io::Result<Self> {
        let (mut len, mut nodes) = (0, Vec::new());
        let mut block = Vec::with_capacity(BLOCK);
        let mut first = None;
        loop {
            block.clear();
            file.by_ref().take(BLOCK as u64).read_to_end(&mut block)?;
            if block.is_empty() && len > 0 {
                break;
            }
            first.get_or_insert_with(|| *blake3::hash(&block).as_bytes());
            if !block.is_empty() {
                nodes.push(node(len, &block));
            }
            len += block.len() as u64;
            if block.len() < BLOCK {
                break;
            }
        }
        let root = match nodes.len() {
            // An empty file has a hash as well.
            0 | 1 => first.unwrap_or_default(),
            _ => *root(&nodes, len).as_bytes(),
        };
        nodes.truncate(count(len));
        Ok(Self { len, root, nodes })
    }

    /// A file of this length and hash, from the nodes that a peer sent; none if they do not add up to the hash.
    pub fn proven(len: u64, root_said: [u8; 32], said: &[u8]) -> Option<Self> {
        let (nodes, rest) = said.as_chunks::<NODE>();
        if nodes.len() != count(len) || !rest.is_empty() {
            return None;
        }
        let adds_up = nodes.is_empty() || root(nodes, len) == Hash::from_bytes(root_said);
        adds_up.then(|| Self {
            len,
            root: root_said,
            nodes: nodes.to_vec(),
        })
    }

    /// The file's length.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// The file's hash, as `b3sum` prints it.
    pub fn root(&self) -> [u8; 32] {
        self.root
    }

    /// The nodes, one after the other.
    pub fn nodes(&self) -> &[u8] {
        self.nodes.as_flattened()
    }

    /// Whether these are the bytes of this piece.
    pub fn proves_piece(&self, index: u64, bytes: &[u8]) -> bool {
        let range = piece(self.len, index);
        let starts = range.clone().step_by(BLOCK);
        range.end.checked_sub(range.start) == Some(bytes.len() as u64)
            && starts
                .zip(bytes.chunks(BLOCK))
                .all(|(from, block)| self.proves(from, block))
    }

    /// Whether these are the file's bytes from `from`, where a block begins, to the end of that block.
    fn proves(&self, from: u64, bytes: &[u8]) -> bool {
        let whole = (self.len - from).min(BLOCK as u64) == bytes.len() as u64;
        whole
            && match self.nodes.get((from / BLOCK as u64) as usize) {
                Some(wanted) => node(from, bytes) == *wanted,
                None => self.nodes.is_empty() && *blake3::hash(bytes).as_bytes() == self.root,
            }
    }
}

/// Number of nodes of a file of this length.
pub fn count(len: u64) -> usize {
    match len.div_ceil(BLOCK as u64) {
        0 | 1 => 0,
        blocks => usize::try_from(blocks).unwrap_or(usize::MAX),
    }
}

/// The bytes of a piece of a file of this length.
pub fn piece(len: u64, index: u64) -> Range<u64> {
    let start = index * PIECE;
    start..len.min(start + PIECE)
}

fn node(from: u64, bytes: &[u8]) -> ChainingValue {
    Hasher::new()
        .set_input_offset(from)
        .update(bytes)
        .finalize_non_root()
}

/// The hash of a file of `len` bytes with these nodes, at least two.
fn root(nodes: &[ChainingValue], len: u64) -> Hash {
    let (left, right) = halves(nodes, len);
    merge_subtrees_root(&left, &right, Mode::Hash)
}

fn subtree(nodes: &[ChainingValue], len: u64) -> ChainingValue {
    match nodes {
        [one] => *one,
        _ => {
            let (left, right) = halves(nodes, len);
            merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
    }
}

fn halves(nodes: &[ChainingValue], len: u64) -> (ChainingValue, ChainingValue) {
    let left = left_subtree_len(len);
    let (before, after) = nodes.split_at((left / BLOCK as u64) as usize);
    (subtree(before, left), subtree(after, len - left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect()
    }

    const LENGTHS: [usize; 10] = [
        0,
        1,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        2 * BLOCK,
        3 * BLOCK + 5,
        4 * BLOCK,
        5 * BLOCK,
        7 * BLOCK + 1024,
    ];

    #[test]
    fn the_root_is_the_files_hash_and_proves_every_block() {
        for len in LENGTHS {
            let file = bytes(len);
            let blocks = Blocks::of(file.as_slice()).unwrap();
            assert_eq!(blocks.root(), *blake3::hash(&file).as_bytes(), "{len}");
            let said = Blocks::proven(len as u64, blocks.root(), blocks.nodes());
            assert_eq!(said.as_ref(), Some(&blocks), "{len}");
            for (at, block) in file.chunks(BLOCK).enumerate() {
                let from = (at * BLOCK) as u64;
                assert!(blocks.proves(from, block), "{len}: {at}");
                assert!(!blocks.proves(from, &block[1..]), "{len}: {at}");
                let mut other = block.to_vec();
                other[block.len() / 2] ^= 1;
                assert!(!blocks.proves(from, &other), "{len}: {at}");
            }
        }
    }

    #[test]
    fn nodes_that_do_not_add_up_prove_nothing() {
        for len in LENGTHS {
            let file = bytes(len);
            let blocks = Blocks::of(file.as_slice()).unwrap();
            let (len, root, nodes) = (len as u64, blocks.root(), blocks.nodes());
            assert_eq!(Blocks::proven(len, root, &[nodes, &[0; NODE]].concat()), None);
            if nodes.is_empty() {
                continue;
            }
            let mut other = nodes.to_vec();
            other[nodes.len() / 2] ^= 1;
            assert_eq!(Blocks::proven(len, root, &other), None, "{len}");
            assert_eq!(Blocks::proven(len, root, &nodes[1..]), None);
            assert_eq!(Blocks::proven(len, root, &nodes[NODE..]), None);
            // The same bytes in another order, and another length.
            let swapped = [&nodes[NODE..2 * NODE], &nodes[..NODE], &nodes[2 * NODE..]].concat();
            assert_eq!(Blocks::proven(len, root, &swapped), None);
            assert_eq!(Blocks::proven(len + BLOCK as u64, root, nodes), None);
        }
    }
}
