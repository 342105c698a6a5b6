//! SentencePiece by scores (`tokenizer.ggml.model` is `llama`): neighbours whose joined text is a token are joined, the
//! best score first. There is no splitting into words; a character without a token becomes byte tokens.
//!
//! A text is cut only between two characters that stand side by side in no token: no merge can reach across, so the
//! tokens are the same as those of the whole, and memory and time stay small.

use super::{
    error::VocabularyFault,
    merge::{Merge, Merger, NONE},
    vocabulary::Vocabulary,
};

/// The character that stands for a space.
pub(super) const SPACE: char = '\u{2581}';

/// The scores of a model.
pub(super) struct SentencePieces {
    /// The priority of each token as the result of a merge: lower is earlier.
    priorities: Box<[u32]>,
    neighbours: Neighbours,
    fallback: Fallback,
    /// Whether a space is put before a text, and before what follows a special token.
    add_space_prefix: bool,
}

/// What a character without a token becomes.
enum Fallback {
    /// A token for each of its bytes.
    Bytes(Box<[u32; 256]>),
    /// This token.
    Unknown(u32),
}

impl SentencePieces {
    /// `scores` has one for each token of `vocabulary`; `unknown` is what a character becomes that has no token, in a
    /// vocabulary without byte tokens.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: impl ExactSizeIterator<Item = f32>,
        unknown: u32,
        add_space_prefix: bool,
    ) -> Result<Self, VocabularyFault> {
        assert_eq!(scores.len(), vocabulary.len(), "one score for each token");
        let priorities =
            scores.enumerate().map(|(id, score)| priority(score).ok_or(VocabularyFault::Score { id }));
        let mut byte_ids = Box::new([NONE; 256]);
        for (byte, id) in byte_ids.iter_mut().enumerate() {
            *id = vocabulary.find(format!("<0x{byte:02X}>").as_bytes()).unwrap_or(NONE);
        }
        let fallback = match byte_ids.contains(&NONE) {
            false => Fallback::Bytes(byte_ids),
            true => Fallback::Unknown(unknown),
        };
        Ok(Self {
            priorities: priorities.collect::<Result<_, _>>()?,
            neighbours: Neighbours::new(vocabulary),
            fallback,
            add_space_prefix,
        })
    }

    /// Whether a space is put before a text.
    pub(super) fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Appends the tokens of `text`, which holds no special token. `at_start` says that nothing or a special token is
    /// before it.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, at_start: bool, out: &mut Vec<u32>) {
        let prefix = (self.add_space_prefix && at_start && !text.is_empty()).then_some(SPACE);
        let mut merger = Merger::default();
        let mut piece = String::new();
        let mut last = None;
        for c in prefix.into_iter().chain(text.chars().map(|c| if c == ' ' { SPACE } else { c })) {
            if last.is_some_and(|last| !self.neighbours.may_hold(last, c)) {
                self.encode_piece(vocabulary, &piece, &mut merger, out);
                piece.clear();
            }
            piece.push(c);
            last = Some(c);
        }
        self.encode_piece(vocabulary, &piece, &mut merger, out);
    }

    fn encode_piece(&self, vocabulary: &Vocabulary, piece: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let bytes = piece.as_bytes();
        merger.clear();
        piece.chars().for_each(|c| merger.push(c.len_utf8(), NONE));
        merger.merge(|left, right| {
            let id = vocabulary.find(&bytes[left.start as usize..right.end as usize])?;
            Some(Merge { priority: self.priorities[id as usize], id })
        });
        for symbol in merger.symbols() {
            let text = &bytes[symbol.start as usize..symbol.end as usize];
            let known = if symbol.id == NONE { vocabulary.find(text) } else { Some(symbol.id) };
            match (known, &self.fallback) {
                (Some(id), _) => out.push(id),
                (None, Fallback::Bytes(ids)) => out.extend(text.iter().map(|&byte| ids[usize::from(byte)])),
                (None, Fallback::Unknown(id)) => out.push(*id),
            }
        }
    }
}

/// Turns a score into a number that orders the other way round: the best score gives the lowest. `None` for NaN.
fn priority(score: f32) -> Option<u32> {
    // Adding zero makes -0.0 into 0.0, which is its equal.
    let bits = (score + 0.0).to_bits();
    // The bits of floats order as signed magnitudes; this makes them order as unsigned numbers.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    (!score.is_nan()).then_some(!ascending)
}

/// Which two characters may stand side by side inside a token. Never says no of two that do.
struct Neighbours(Box<[u64; Self::WORDS]>);

impl Neighbours {
    /// 2^22 bits: the pairs of a vocabulary of 262 thousand tokens set under a tenth of them.
    const BITS_LOG2: u32 = 22;
    const WORDS: usize = 1 << (Self::BITS_LOG2 - 6);

    fn new(vocabulary: &Vocabulary) -> Self {
        let mut this = Self(vec![0; Self::WORDS].try_into().expect("as many words as asked for"));
        for (id, _) in vocabulary.kinds() {
            let text = vocabulary.text(id);
            for (a, b) in text.chars().zip(text.chars().skip(1)) {
                let (word, bit) = Self::place(a, b);
                this.0[word] |= bit;
            }
        }
        this
    }

    fn may_hold(&self, a: char, b: char) -> bool {
        let (word, bit) = Self::place(a, b);
        self.0[word] & bit != 0
    }

    /// The bit of a pair: the high bits of a multiplication by 2^64 over the golden ratio, which spreads well.
    fn place(a: char, b: char) -> (usize, u64) {
        let pair = u64::from(a as u32) << 32 | u64::from(b as u32);
        let hash = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::BITS_LOG2);
        (hash as usize / 64, 1 << (hash % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_come_first() {
        let scores = [f32::INFINITY, 3.5, 1e-40, 0.0, -1.0, -1000.0, f32::NEG_INFINITY];
        let priorities: Vec<_> = scores.iter().map(|&score| priority(score).expect("a number")).collect();
        assert!(priorities.is_sorted_by(|a, b| a < b), "{priorities:?}");
        assert_eq!(priority(-0.0), priority(0.0));
        assert_eq!(priority(f32::NAN), None);
    }
}
