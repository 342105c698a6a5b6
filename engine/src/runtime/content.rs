//! The hash of a model's weights, taken while they are brought to a device: a piece is hashed by the thread that copied the
//! last of its bytes, while they are in its cache. So the file is read once and the hash is computed by all threads.
//!
//! A tensor's hash is `blake3` over the `blake3` hashes of its pieces of 64 KiB, of which the last may be shorter. What
//! becomes of them is the fingerprint's business: each stage of a model hashes its own tensors.
//!
//! Invariant: it follows from the tensor's bytes alone. What was copied when, by whom and whether at all decides only when a
//! piece is hashed.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::gguf::Tensor;

/// Bytes of a piece: many times what the widest vectors hash side by side, and small beside a processor's cache.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of the file that are given back together: some pieces, worth a system call that interrupts the other threads.
const WINDOW_BYTES: usize = 16 * PIECE_BYTES;

/// The tensors of a model, as far as they were asked for.
#[derive(Default)]
pub(super) struct Content<'a>(BTreeMap<&'a str, TensorContent<'a>>);

impl<'a> Content<'a> {
    /// The hash in the making of `tensor`, which is part of the model from now on.
    pub(super) fn tensor(&mut self, tensor: Tensor<'a>) -> &TensorContent<'a> {
        self.0.entry(tensor.name()).or_insert_with(|| TensorContent::new(tensor))
    }

    /// The hash of each tensor, by name. What was not copied is hashed now.
    pub(super) fn finish(self) -> BTreeMap<String, [u8; 32]> {
        self.0.into_iter().map(|(name, tensor)| (name.to_owned(), *tensor.finish().as_bytes())).collect()
    }
}

/// The hash of one tensor in the making.
pub(super) struct TensorContent<'a> {
    tensor: Tensor<'a>,
    pieces: Box<[Piece]>,
    windows: Box<[Copied]>,
}

#[derive(Default)]
struct Piece {
    copied: Copied,
    hash: OnceLock<blake3::Hash>,
}

/// How many bytes of a part were copied.
#[derive(Default)]
struct Copied(AtomicUsize);

impl Copied {
    /// Counts what of `part` is in `range`; says whether the part is whole with it and was not before.
    fn add(&self, part: &Range<usize>, range: &Range<usize>) -> bool {
        let own = part.end.min(range.end) - part.start.max(range.start);
        let before = self.0.fetch_add(own, Ordering::Relaxed);
        before < part.len() && before + own >= part.len()
    }
}

impl<'a> TensorContent<'a> {
    fn new(tensor: Tensor<'a>) -> Self {
        let len = tensor.bytes().len();
        let pieces = (0..len.div_ceil(PIECE_BYTES)).map(|_| Piece::default()).collect();
        let windows = (0..len.div_ceil(WINDOW_BYTES)).map(|_| Copied::default()).collect();
        Self { tensor, pieces, windows }
    }

    /// Takes note that a range of the tensor's bytes was copied, from any thread: hashes the pieces that are copied whole,
    /// and gives back the file's pages of the windows that are.
    pub(super) fn copied(&self, range: Range<usize>) {
        for index in range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES) {
            if self.pieces[index].copied.add(&self.part(index, PIECE_BYTES), &range) {
                self.hash(index);
            }
        }
        for index in range.start / WINDOW_BYTES..range.end.div_ceil(WINDOW_BYTES) {
            let window = self.part(index, WINDOW_BYTES);
            if self.windows[index].add(&window, &range) {
                self.tensor.give_back(window);
            }
        }
    }

    fn finish(&self) -> blake3::Hash {
        let mut hash = blake3::Hasher::new();
        for index in 0..self.pieces.len() {
            hash.update(self.hash(index).as_bytes());
        }
        hash.finalize()
    }

    fn hash(&self, index: usize) -> &blake3::Hash {
        let piece = self.part(index, PIECE_BYTES);
        self.pieces[index].hash.get_or_init(|| blake3::hash(&self.tensor.bytes()[piece]))
    }

    /// The `index`th part of `bytes` bytes; the last may be shorter.
    fn part(&self, index: usize, bytes: usize) -> Range<usize> {
        let start = index * bytes;
        start..self.tensor.bytes().len().min(start + bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::gguf::GgufFile;

    const FILE: &str = "../testdata/quants/qwen3moe-moe.q4_k_m.gguf";

    /// The same without pieces in the making.
    fn twin(file: &GgufFile) -> BTreeMap<String, [u8; 32]> {
        let hash = |tensor: Tensor<'_>| {
            let pieces = tensor.bytes().chunks(64 << 10).flat_map(|piece| *blake3::hash(piece).as_bytes());
            *blake3::hash(&pieces.collect::<Vec<u8>>()).as_bytes()
        };
        file.tensors().map(|tensor| (tensor.name().to_owned(), hash(tensor))).collect()
    }

    /// Threads copy ranges of any size in any order; ranges may overlap or be missing.
    #[test]
    fn what_was_copied_when_makes_no_difference() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
        let file = GgufFile::open(&path).expect("a reference file");
        let expected = twin(&file);
        let ragged = |len: usize| len > 2 * PIECE_BYTES && !len.is_multiple_of(PIECE_BYTES);
        assert!(file.tensors().any(|tensor| ragged(tensor.bytes().len())), "pieces, and a shorter one");
        let mut random = 1u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % n
        };
        for round in 0..4 {
            let mut content = Content::default();
            for tensor in file.tensors() {
                let len = tensor.bytes().len();
                let mut cuts: Vec<usize> = (0..below(40)).map(|_| below(len)).chain([0, len]).collect();
                cuts.sort_unstable();
                let mut ranges: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
                if round > 1 {
                    ranges.swap_remove(0);
                    ranges.extend([len / 3..len, len / 2..len / 2]);
                }
                let half = below(ranges.len() + 1);
                let (one, other) = ranges.split_at(half);
                let making = content.tensor(tensor);
                std::thread::scope(|scope| {
                    scope.spawn(|| other.iter().cloned().for_each(|range| making.copied(range)));
                    one.iter().rev().cloned().for_each(|range| making.copied(range));
                });
                if round < 2 {
                    assert!(making.pieces.iter().all(|piece| piece.hash.get().is_some()), "all was copied");
                }
            }
            assert_eq!(content.finish(), expected, "round {round}");
        }
    }
}
